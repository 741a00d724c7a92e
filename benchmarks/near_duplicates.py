"""Which near-duplicates does an ingest join, and which images wrongly? ``python -m benchmarks.near_duplicates``.

* Planted copies: a share of the images is written again in other formats, qualities and sizes, shifted by a pixel and
  cropped, and compared with the original.
* Wrongly joined: the data sets have no copies that we know of, so what is joined there counts as wrong.

Data sets: the emoji of `examples/` (64 pixels, of which many differ in a color or a detail), drawn photographs
(`benchmarks.images`, 500 x 375), and with ``--fashion DIR`` the first 10,000 images of Fashion-MNIST (28 pixels).
The rules are the hash alone, with the mean difference, and with the blocks, at several limits.
"""

import argparse
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.images import photograph
from benchmarks.learning import idx
from benchmarks.machine import machine, write_results
from dasl_core.data import duplicates
from dasl_core.data.duplicates import MAX_BLOCK, MAX_MEAN, first_similar, reduce
from dasl_core.data.ingest import ingest_folder
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "near_duplicates.json"
PHOTOS, FASHION, COPIED = 100, 10_000, 400
SPAN = 255
OFF = 1e9
# Limits on the mean and on the blocks.
RULES = {
    "hash alone": (OFF, OFF),
    "hash, mean 0.03": (0.03, OFF),
    "mean 0.02, blocks 0.06": (0.02, 0.06),
    "mean 0.02, blocks 0.08": (0.02, 0.08),
    f"mean {MAX_MEAN}, blocks {MAX_BLOCK} (the rule)": (MAX_MEAN, MAX_BLOCK),
    "mean 0.03, blocks 0.1": (0.03, 0.1),
    "mean 0.04, blocks 0.1": (0.04, 0.1),
}


class Images(NamedTuple):
    """Pixels (H, W, 3) uint8, and the class of each image; None without classes."""

    pixels: list[np.ndarray]
    classes: list[int] | None


def written(format: str, **options: Any) -> Callable[[Image.Image], Image.Image]:
    """Return a function that writes and reads an image."""

    def copy(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, format, **options)
        return Image.open(file).convert("RGB")

    return copy


def scaled(by: float) -> Callable[[Image.Image], Image.Image]:
    """Return a function that changes the size of an image."""
    return lambda image: image.resize(
        (round(by * image.width), round(by * image.height)), Image.Resampling.BICUBIC
    )


def shifted(image: Image.Image) -> Image.Image:
    """Shift an image by one pixel to the right, repeating its first column."""
    moved = image.copy()
    moved.paste(image, (1, 0))
    return moved


def cropped(image: Image.Image) -> Image.Image:
    """Cut 2 percent, at least a pixel, from each side."""
    x, y = (max(1, round(0.02 * side)) for side in image.size)
    return image.crop((x, y, image.width - x, image.height - y))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG 95": written("JPEG", quality=95),
    "JPEG 75": written("JPEG", quality=75),
    "JPEG 50": written("JPEG", quality=50),
    "WebP 80": written("WEBP", quality=80),
    "half size": scaled(0.5),
    "3/4 size": scaled(0.75),
    "3/2 size": scaled(1.5),
    "twice, JPEG 75": lambda image: written("JPEG", quality=75)(scaled(2)(image)),
    "shifted by 1 pixel": shifted,
    "cropped by 2 %": cropped,
}


def emoji() -> Images:
    """Return the emoji, as an ingest decodes them."""
    with tempfile.TemporaryDirectory(prefix="dasl-duplicates-") as folder:
        index = ingest_folder(unpack_emoji(Path(folder)))
        assert index.labels is not None
        return Images([index.decode(i, 3) for i in range(len(index))], index.labels.tolist())


def fashion(folder: Path) -> Images:
    """Return the first images of Fashion-MNIST."""
    images = idx(folder, "train-images-idx3-ubyte")[16:].reshape(-1, 28, 28, 1)[:FASHION]
    labels = idx(folder, "train-labels-idx1-ubyte")[8:][:FASHION]
    return Images([image.repeat(3, axis=2) for image in images], labels.tolist())


def photographs() -> Images:
    """Return drawn photographs."""
    return Images([np.asarray(photograph(seed, 500, 375)) for seed in range(PHOTOS)], None)


def measure(images: Images) -> dict[str, dict[str, float]]:
    """Return by rule which share of the planted copies is found, and what is joined without copies."""
    thumbnails = [reduce(pixels) for pixels in images.pixels]
    chosen = np.random.default_rng(0).permutation(len(thumbnails))[:COPIED].tolist()
    copies = {
        name: [reduce(np.asarray(copy(Image.fromarray(images.pixels[i])))) for i in chosen]
        for name, copy in COPIES.items()
    }
    results = {}
    for rule, (mean, block) in RULES.items():
        with patch.multiple(duplicates, MAX_MEAN=mean, MAX_BLOCK=block):
            found = {
                name: np.mean(
                    [
                        first_similar([thumbnails[i], copy], SPAN)[0][1] == 0
                        for i, copy in zip(chosen, of_kind, strict=True)
                    ]
                )
                for name, of_kind in copies.items()
            }
            first, _ = first_similar(thumbnails, SPAN)
        joined = np.flatnonzero(first != np.arange(len(first)))
        classes = np.zeros(len(first)) if images.classes is None else np.array(images.classes)
        results[rule] = {name: float(share) for name, share in found.items()} | {
            "images": len(first),
            "joined": len(joined),
            "joined to another class": int((classes[joined] != classes[first[joined]]).sum()),
            "largest group": int(np.bincount(first).max()),
        }
    return results


def main() -> int:
    """Measure the rules, print the tables and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fashion", type=Path, metavar="DIR", help="folder of Fashion-MNIST")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    sets = {"emoji": emoji(), "photographs": photographs()}
    if arguments.fashion is not None:
        sets["fashion"] = fashion(arguments.fashion)
    results = {name: measure(images) for name, images in sets.items()}
    about = machine("numpy", "pillow")
    write_results(arguments.output, {"machine": about, "copied": COPIED, "results": results})
    for name, rules in results.items():
        table = Table(title=f"{name}: copies found (percent), and images joined without copies")
        table.add_column("")
        for rule in rules:
            table.add_column(rule, justify="right")
        for row in next(iter(rules.values())):
            is_share = row in COPIES
            cells = [
                f"{100 * found[row]:.0f}" if is_share else f"{found[row]}"
                for found in rules.values()
            ]
            table.add_row(row, *cells)
        Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
