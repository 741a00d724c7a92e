"""From an index to batches: canvases of one size, kept on disk, read ahead of the training step.

A *canvas* is an image decoded once, scaled down (never up) so that its longer side is at most twice
the training resolution, and laid into the upper left of a square. Random crops are then taken on the
device from pixels finer than they need, with a bilinear filter that reduces by at most two.
"""

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dasl_core.data.decode import decode_image
from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import rank, world_size
from dasl_core.seeds import stream

log = logging.getLogger(__name__)

# A cache never takes more than this share of what is free on its disk.
CACHE_SHARE_OF_FREE_DISK = 0.5


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global batch.

    Attributes:
        canvases: (B, C, S, S) uint8.
        extents: (B, 2) int64, height and width of the image within its canvas.
        samples: (N,) int64, positions in the index of the whole global batch's images, in rank order.
        step: within the epoch.
    """

    canvases: Tensor
    extents: Tensor
    samples: Tensor
    step: int


class Canvases:
    """All images of an index as canvases, from a cache on disk where it fits, else decoded anew."""

    def __init__(
        self,
        index: DatasetIndex,
        image_size: int,
        channels: int,
        *,
        cache: Path,
        threads: int,
    ) -> None:
        """`cache`: a folder for this data set, which several processes may share."""
        self.index = index
        self.channels = channels
        self.side = min(2 * image_size, int(index.sizes.max()))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._pixels: np.ndarray | None = None
        self._heights_widths = _canvas_extents(index.sizes, self.side)
        self._reported: set[int] = set()
        try:
            self._pixels = self._open_cache(cache)
        except OSError as error:  # a full disk, no right to write: the run goes on without
            log.warning("decoded images cannot be kept (%s): every epoch decodes them anew", error)

    def read(self, samples: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """Canvases (B, C, S, S) uint8 and extents (B, 2) int64 of the samples."""
        positions = np.asarray(samples, dtype=np.int64)
        if self._pixels is None:
            pixels = np.stack(list(self._pool.map(self._draw, positions.tolist())))
        else:
            pixels = self._pixels[positions]
        return torch.from_numpy(pixels), torch.from_numpy(self._heights_widths[positions])

    def close(self) -> None:
        """End the decoding threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _draw(self, sample: int) -> np.ndarray:
        canvas = np.zeros((self.channels, self.side, self.side), dtype=np.uint8)
        height, width = self._heights_widths[sample]
        try:
            pixels = decode_image(self.index.path(sample), self.channels)
        except ValueError as error:
            # It was whole when it was ingested. A black image in place of one that has since broken
            # costs less than the run.
            if sample not in self._reported:
                self._reported.add(sample)
                log.warning("%s can no longer be read: %s", self.index.paths[sample], error)
            return canvas
        if pixels.shape[:2] != (height, width):
            image = Image.fromarray(pixels if self.channels == 3 else pixels[:, :, 0])
            resized = image.resize(
                (int(width), int(height)), Image.Resampling.BOX, reducing_gap=3.0
            )
            pixels = np.asarray(resized).reshape(height, width, self.channels)
        canvas[:, :height, :width] = pixels.transpose(2, 0, 1)
        return canvas

    def _shape(self) -> tuple[int, int, int, int]:
        return (len(self.index), self.channels, self.side, self.side)

    def _cache_file(self, cache: Path) -> Path:
        content = hashlib.blake2b(digest_size=16)
        content.update(repr((str(self.index.root), self._shape())).encode())
        for path in self.index.paths:
            content.update(path.encode() + b"\0")
        content.update(self.index.sizes.tobytes())
        return cache / f"canvases-{content.hexdigest()}.npy"

    def _open_cache(self, cache: Path) -> np.ndarray:
        cache.mkdir(parents=True, exist_ok=True)
        target = self._cache_file(cache)
        # Ranks of one machine, and jobs on one data set, meet here: one builds, the others wait.
        with open(target.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                self._build_cache(target)
        pixels: np.ndarray = np.load(target, mmap_mode="r")
        return pixels

    def _build_cache(self, target: Path) -> None:
        # One name for all, who hold the lock: what a killed process left is written over.
        partial = target.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        needed = int(np.prod(self._shape(), dtype=np.int64))
        if needed > shutil.disk_usage(target.parent).free * CACHE_SHARE_OF_FREE_DISK:
            raise OSError(errno.ENOSPC, f"they take {needed >> 20} MiB")
        try:
            with open(partial, "wb") as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": self._shape()}
                np.lib.format.write_array_header_1_0(file, header)
                for canvas in self._pool.map(self._draw, range(len(self.index))):
                    file.write(canvas.tobytes())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _canvas_extents(sizes: np.ndarray, side: int) -> np.ndarray:
    """(N, 2) int64 heights and widths of images (N, 2) width, height scaled into a canvas."""
    scale = np.minimum(1.0, side / sizes.max(axis=1, keepdims=True))
    extents: np.ndarray = np.maximum(1, np.round(sizes[:, ::-1] * scale)).astype(np.int64)
    return extents


class EpochLoader:
    """Batches of a rank, in an order that depends on the seed and the epoch alone.

    Every rank permutes all samples alike and takes a contiguous share of each global batch, so the
    global batches do not depend on the number of ranks. The last, incomplete batch is left out.
    """

    def __init__(self, canvases: Canvases, samples: np.ndarray, batch_size: int, seed: int) -> None:
        """`samples`: positions in the index to train on; `batch_size`: global."""
        if batch_size > len(samples):
            raise ValueError(
                f"train.batch_size is {batch_size}, but only {len(samples)} images are left for "
                "training"
            )
        assert batch_size % world_size() == 0, "JobSpec checks that ranks share a batch evenly"
        self.canvases = canvases
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.steps = len(samples) // batch_size

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Batches of one epoch from `first_step` on, each read while the one before is used."""
        order = torch.randperm(
            len(self.samples), generator=stream(self.seed, "order", epoch)
        ).numpy()
        share = self.batch_size // world_size()
        begin = rank() * share

        def read(step: int) -> Batch:
            first = step * self.batch_size + begin
            chosen = self.samples[order[first : first + share]]
            pixels, extents = self.canvases.read(chosen)
            batch = self.samples[order[first - begin : first - begin + self.batch_size]]
            return Batch(pixels, extents, torch.from_numpy(batch), step)

        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            ahead: list[Future[Batch]] = []
            for step in itertools.chain(range(first_step, self.steps), [None, None]):
                if step is not None:
                    ahead.append(reader.submit(read, step))
                if ahead and (step is None or len(ahead) > 2):
                    yield ahead.pop(0).result()
