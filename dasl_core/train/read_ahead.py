"""Prefetching of an evaluation's images, and buffered collection of features."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.bounded_map import bounded_map
from dasl_core.data.image_set import ImageSet
from dasl_core.tensors import pinned

T = TypeVar("T")

# Number of batches in memory, including the one in use.
BATCHES = 2
# Bytes of features collected on the device before a copy, which waits for the device.
CHUNK_BYTES = 64 << 20


def canvases_ahead(
    images: ImageSet, batches: Iterable[tuple[np.ndarray, T]], device: torch.device
) -> Generator[tuple[T, Tensor, Tensor], None, None]:
    """Yield batches of images, prefetching the next one.

    Args:
        batches: positions in `images`, and a value to yield with them.
        device: to which the caller copies the canvases.

    Yields:
        The value, canvases, and valid heights and widths of each batch.
    """

    def read(batch: tuple[np.ndarray, T]) -> tuple[T, Tensor, Tensor]:
        positions, about = batch
        canvases, valid_hw = images.canvases.read(images.indices[positions])
        return about, pinned(canvases, device), valid_hw

    with ThreadPoolExecutor(1, thread_name_prefix="evaluate-read") as reader:
        yield from bounded_map(reader, read, batches, BATCHES)


class FeatureTable:
    """Features (ranks, rows, d) float32 on the CPU, added in batches along the rows.

    They may not all fit into a GPU's memory during training.
    """

    def __init__(self, ranks: int, rows: int) -> None:
        self.ranks, self.rows = ranks, rows
        self._table: Tensor | None = None
        self._filled = 0
        self._waiting: list[Tensor] = []

    def add(self, features: Tensor) -> None:
        """Add the next rows (ranks, n, d), which stay on their device for a while."""
        self._waiting.append(features)
        if sum(features.nbytes for features in self._waiting) >= CHUNK_BYTES:
            self._copy()

    def table(self, width: int | None = None) -> Tensor:
        """Return all features.

        Args:
            width: d, for a table without rows.
        """
        if self._waiting:
            self._copy()
        if self._table is None:
            assert width is not None, "a set of images to evaluate is never empty"
            self._table = torch.empty(self.ranks, self.rows, width)
        assert self._filled == self.rows
        return self._table

    def _copy(self) -> None:
        chunk = torch.cat(self._waiting, dim=1)
        self._waiting.clear()
        if self._table is None:
            self._table = torch.empty(self.ranks, self.rows, chunk.shape[2])
        self._table[:, self._filled : self._filled + chunk.shape[1]] = chunk.cpu()
        self._filled += chunk.shape[1]
