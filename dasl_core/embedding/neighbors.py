"""Exact nearest neighbors among many embeddings, by cosine similarity."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dasl_core.embedding.features import FeatureBatch
from dasl_core.tensors import TILE_ENTRIES, exact_products, unit_rows

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Neighbor:
    """A nearest neighbor of an image."""

    key: str
    label: str | None
    similarity: float


class NeighborIndex:
    """Embeddings of images with `keys`, as (N, d) float32 unit vectors in a memory-mapped file of any size."""

    def __init__(self, batches: Iterable[FeatureBatch], file: Path) -> None:
        """Write the vectors to a file.

        Args:
            batches: features (n, d) of all images.

        Raises:
            ValueError: there are none, or they are not one vector for each image.
        """
        self.keys: list[str] = []
        self._labels: list[str] | None = []
        width = 0
        with open(file, "wb") as output:
            for batch in batches:
                if batch.features.ndim != 2:
                    raise ValueError("neighbors need one vector for each image, not one a patch")
                width = batch.features.shape[1]
                vectors = unit_rows(torch.from_numpy(batch.features.astype(np.float32)))
                output.write(vectors.numpy().tobytes())
                self.keys += batch.keys
                if batch.labels is None:
                    self._labels = None
                elif self._labels is not None:
                    self._labels += batch.labels
        if not self.keys:
            raise ValueError("the embedding has no images")
        shape = (len(self.keys), width)
        self.vectors: np.ndarray = np.memmap(file, np.float32, "r+", shape=shape)
        self._positions = {key: position for position, key in enumerate(self.keys)}

    def position(self, key: str) -> int | None:
        """Return the position of an image, or None without an embedding."""
        return self._positions.get(key)

    def nearest(self, query: Tensor, k: int, *, without: int | None = None) -> list[Neighbor]:
        """Return the `k` images nearest to a vector (d,), not `without`, nearest first; ties go to the earlier one."""
        unit = unit_rows(query.float()[None])[0]
        similarity, position = torch.empty(0), torch.empty(0, dtype=torch.int64)
        count, width = self.vectors.shape
        step = max(1, TILE_ENTRIES // width)
        with exact_products(_CPU):
            for start in range(0, count, step):
                block = torch.from_numpy(self.vectors[start : start + step])
                similarity = torch.cat([similarity, block @ unit])
                position = torch.cat([position, torch.arange(start, start + len(block))])
                if without is not None and start <= without < start + len(block):
                    is_other = position != without
                    similarity, position = similarity[is_other], position[is_other]
                # Stable, so ties keep their order.
                similarity, order = torch.sort(similarity, descending=True, stable=True)
                similarity, position = similarity[:k], position[order[:k]]
        labels = self._labels
        return [
            Neighbor(self.keys[at], None if labels is None else labels[at], value)
            for at, value in zip(position.tolist(), similarity.tolist(), strict=True)
        ]
