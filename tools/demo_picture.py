"""Draw the picture of the README, which words look alike: ``python -m tools.demo_picture``, after ``make demo``.

Ten of the fonts that the demo holds out, evenly spaced in the order of their names, each with its first word and the
nearest words among those of all held-out fonts, by raw pixels and by the features of the demo's backbone.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import timm
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file

from dasl_core.data.ingest import ingest_folder
from dasl_core.data.split import split
from dasl_core.spec import JobSpec, load_spec

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "demo"
PICTURE = ROOT / "docs" / "images" / "demo-fonts.png"
ROWS, NEIGHBORS = 10, 5
SIDE, GAP, TOP = 72, 10, 34  # pixels
INK, GREEN = "#1c1e21", "#2ba84a"


def main() -> int:
    """Find the neighbors and draw them."""
    spec = JobSpec.model_validate(load_spec(ROOT / "examples" / "demo.yaml"))
    index = ingest_folder(BUILD / "fonts")
    held_out = split(index, spec.evaluate.holdout).held_out
    assert index.labels is not None
    labels = index.labels[held_out]
    words = [Image.open(BUILD / "fonts" / index.paths[position]) for position in held_out]
    families = np.unique(labels)
    chosen = families[np.linspace(0, len(families) - 1, ROWS).astype(int)]
    queries = [int(np.flatnonzero(labels == family)[0]) for family in chosen]
    pixels = torch.stack([torch.from_numpy(np.array(word.convert("RGB"))) for word in words])
    pixels = pixels.permute(0, 3, 1, 2) / 255
    found = [nearest(each, queries) for each in (pixels.flatten(1), features(pixels))]
    draw(words, labels, queries, found)
    return 0


def features(images: torch.Tensor) -> torch.Tensor:
    """Return the features of images with values from 0 to 1, as the checkpoint's model card says."""
    about = json.loads((BUILD / "checkpoint" / "model.json").read_text(encoding="utf-8"))
    model = timm.create_model(**about["timm"])
    model.load_state_dict(load_file(BUILD / "checkpoint" / "backbone.safetensors"))
    mean, std = (
        torch.tensor(about["preprocessing"][name]).view(3, 1, 1) for name in ("mean", "std")
    )
    with torch.no_grad():
        result: torch.Tensor = model.eval()((images - mean) / std)
    return result


def nearest(vectors: torch.Tensor, queries: list[int]) -> list[list[int]]:
    """Return the positions of the nearest other vectors of each query, by the cosine."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    similarity = unit[queries] @ unit.T
    similarity[range(len(queries)), queries] = -1
    return [row.tolist() for row in similarity.topk(NEIGHBORS).indices]


def draw(
    words: Sequence[Image.Image],
    labels: np.ndarray,
    queries: list[int],
    found: list[list[list[int]]],
) -> None:
    """Write the picture: each query, and its neighbors, with a frame around those in the same font."""
    step = SIDE + GAP
    lefts = [GAP, 2 * GAP + step, 3 * GAP + (NEIGHBORS + 1) * step]
    size = (lefts[-1] + NEIGHBORS * step, TOP + ROWS * step)
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans-Bold.ttf"), 14)
    for left, title in zip(
        lefts, ("Word", "Nearest by raw pixels", "Nearest by features"), strict=True
    ):
        pen.text((left, 8), title, INK, font)
    for row, query in enumerate(queries):
        for left, shown in zip(lefts, ([query], *(each[row] for each in found)), strict=True):
            for number, position in enumerate(shown):
                x, y = left + number * step, TOP + row * step
                picture.paste(
                    words[position].resize((SIDE, SIDE), Image.Resampling.LANCZOS), (x, y)
                )
                if position != query and labels[position] == labels[query]:
                    pen.rectangle(
                        (x - 3, y - 3, x + SIDE + 2, y + SIDE + 2), outline=GREEN, width=3
                    )
        right = [sum(labels[each[row]] == labels[query]) for each in found]
        print(labels[query], *right)
    picture.quantize(64, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
