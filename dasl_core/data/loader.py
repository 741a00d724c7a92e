"""Batches of images, from a cache of decoded canvases on disk, prefetched ahead of the training step.

A *canvas* is an image decoded once, scaled down (never up) so that its longer side is at most twice
the training resolution, and placed into the upper left of a square. Random crops are then taken on the
device, with an antialiasing filter: a crop may have more pixels than its view (`views`).
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.bounded_map import bounded_map
from dasl_core.data.canvases import Canvases
from dasl_core.data.sampler import class_balanced_order
from dasl_core.distributed import rank, world_size
from dasl_core.seeds import stream

BATCHES_AHEAD = 3
# Two threads, so that a batch starts while the last images of the previous one are decoded.
READERS = 2


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global batch.

    Attributes:
        canvases: (B, C, S, S), of the index's pixel type.
        valid_hw: (B, 2) int64, height and width of the image within its canvas.
        indices: (N,) int64, positions in the index of all images of the global batch, in rank order.
        step: within the epoch.
        seconds: time that a thread took to read and decode the batch.
        worked: processor time of all threads that did so.
    """

    canvases: Tensor
    valid_hw: Tensor
    indices: Tensor
    step: int
    seconds: float = 0.0
    worked: float = 0.0


class EpochLoader:
    """Batches of a rank, in an order that depends only on the seed and the epoch.

    Every rank permutes all images in the same way and takes a contiguous share of each global batch, so the
    global batches do not depend on the number of ranks. The last, incomplete batch is dropped.
    """

    def __init__(
        self,
        canvases: Canvases,
        indices: np.ndarray,
        batch_size: int,
        seed: int,
        *,
        labels: Tensor | None = None,
        samples_per_class: int | None = None,
    ) -> None:
        """Create a loader. No image is read yet.

        Args:
            indices: positions in the index of the images to train on.
            batch_size: global.
            labels: (len(indices),) int64 classes, for `samples_per_class`.
            samples_per_class: images of each class in a global batch (`class_balanced_order`); None
                takes each image once an epoch.
        """
        if batch_size > len(indices):
            raise ValueError(
                f"train.batch_size is {batch_size}, but only {len(indices)} images are left for "
                "training"
            )
        assert batch_size % world_size() == 0, "JobSpec checks that ranks share a batch evenly"
        assert samples_per_class is None or labels is not None, (
            "resolve checks that there are classes"
        )
        self.labels, self.samples_per_class = labels, samples_per_class
        self.canvases = canvases
        self.indices = indices
        self.batch_size = batch_size
        self.seed = seed
        self.steps = len(indices) // batch_size

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch from `first_step` on, prefetched."""
        return self.batches(epoch * self.steps + first_step, (epoch + 1) * self.steps)

    def batches(
        self, first: int, last: int, finish: Callable[[Batch], Batch] = lambda batch: batch
    ) -> Iterator[Batch]:
        """Yield the batches of the steps `first` to `last` - 1 of a run, prefetched across epochs.

        Args:
            finish: called with each batch in the thread that read it.
        """
        share = self.batch_size // world_size()
        begin = rank() * share
        # Batches of two epochs are read at the same time.
        order_of = lru_cache(maxsize=2)(self.order)

        def read(position: tuple[np.ndarray, int]) -> Batch:
            started, decoded = time.perf_counter(), list[float]()
            began = time.thread_time()
            order, step = position
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            pixels, valid_hw = self.canvases.read(batch[begin : begin + share], decoded.append)
            seconds = time.perf_counter() - started
            worked = time.thread_time() - began + sum(decoded)
            return finish(Batch(pixels, valid_hw, torch.from_numpy(batch), step, seconds, worked))

        positions = (divmod(step, self.steps) for step in range(first, last))
        with ThreadPoolExecutor(READERS, thread_name_prefix="read-ahead") as readers:
            yield from bounded_map(
                readers,
                read,
                ((order_of(epoch), step) for epoch, step in positions),
                BATCHES_AHEAD,
            )

    def order(self, epoch: int) -> np.ndarray:
        """Return the positions in the index of an epoch's images, batch after batch."""
        generator = stream(self.seed, "order", epoch)
        if self.samples_per_class is None or self.labels is None:
            positions = torch.randperm(len(self.indices), generator=generator)
        else:
            positions = class_balanced_order(
                self.labels, self.samples_per_class, self.batch_size, generator
            )
        order: np.ndarray = self.indices[positions.numpy()]
        return order
