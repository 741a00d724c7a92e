"""Pictures of a run as data, written by the core from features that learn to tell painted images apart."""

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dasl_core.plots import data
from dasl_core.plots.data import aligned, principal_components
from dasl_core.plots.history import GroupNorms, Histogram, History, Shown
from dasl_core.plots.images import ShownImages

CLASSES = ("avocet", "bittern", "curlew", "dunlin", "egret", "fulmar", "gannet", "heron", "ibis")
HELD_OUT, TRAIN = 160, 320


class PaintedImages(ShownImages):
    """Images of one color for each class, with a bright square somewhere."""

    def __init__(self) -> None:
        super().__init__(range(HELD_OUT), range(TRAIN))  # type: ignore[arg-type]

    def key(self, position: int) -> str:
        return f"{self.label(position)}/{position:04d}.png"

    def label(self, position: int) -> str:
        return CLASSES[position % len(CLASSES)]

    def _pixels(self, positions: Sequence[int]) -> Iterator[np.ndarray]:
        for position in positions:
            random = np.random.default_rng(position)
            hue = np.random.default_rng(position % len(CLASSES) + 99).integers(40, 215, 3)
            pixels = np.full((48, 64, 3), hue, np.uint8)
            top, left = random.integers(0, 28), random.integers(0, 44)
            pixels[top : top + 20, left : left + 20] = 245
            yield pixels


def pictures(evaluations: int, steps: int) -> dict[str, bytes]:
    """Return the files of a run that was evaluated so many times, `steps` apart."""
    images, history = PaintedImages(), History()
    positions = list(range(len(images)))
    random = np.random.default_rng(7)
    classes = np.array([position % len(CLASSES) for position in positions])
    centers = random.normal(size=(len(CLASSES), 16))
    noise = random.normal(size=(len(positions), 16))
    for number in range(evaluations):
        features = centers[classes] * number / max(1, evaluations - 1) * 1.3 + noise
        norms = np.linalg.norm(features, axis=1)
        cosines = (features / norms[:, None]) @ (features / norms[:, None]).T
        np.fill_diagonal(cosines, -np.inf)
        queries = data.query_positions(HELD_OUT)
        nearest = np.argsort(-cosines[queries], axis=1)[:, : data.NEIGHBORS]
        places, explained = principal_components((features / norms[:, None]).astype(np.float32))
        if history.evaluations:
            places = aligned(places, history.evaluations[-1].map)
        other = classes[:, None] != classes
        history.add(
            Shown(
                step=number * steps,
                epoch=float(number * 10),
                subject="backbone" if number else "untrained",
                neighbors=nearest,
                similarities=np.take_along_axis(cosines[queries], nearest, axis=1),
                map=places,
                explained=explained,
                distances=Histogram.from_values(1 - cosines[other]),
                norms=Histogram.from_values(norms),
                by_group=GroupNorms.from_values("class", norms, [CLASSES[i] for i in classes]),
            )
        )
    run: Any = SimpleNamespace(searched=TRAIN)
    neighbors, sheet = data.neighbors_data(history, images, run)
    index, thumbnails = data.thumbnails(images, positions)
    contents = {
        "neighbours.json": neighbors,
        "thumbnails.json": index,
        "map.json": data.map_data(history),
        "histograms.json": data.histograms_data(history, labeled=True),
    }
    written = {name: json.dumps(content).encode() for name, content in contents.items()}
    return written | {"neighbours.webp": sheet, "thumbnails.webp": thumbnails}
