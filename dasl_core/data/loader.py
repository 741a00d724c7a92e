"""Batches of images, from a cache of decoded canvases on disk, prefetched ahead of the training step.

A *canvas* is an image decoded once, scaled down (never up) so that its longer side is at most twice
the training resolution, and placed into the upper left of a square. Random crops are then taken on the
device, with an antialiasing filter: a crop may have more pixels than its view (`augment`).
"""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dasl_core.atomic import write_atomically
from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.cache import CacheFolder, locked
from dasl_core.data.index import DatasetIndex
from dasl_core.data.sampler import class_balanced_order
from dasl_core.data.unreadable import PATHS_REPORTED, too_many
from dasl_core.distributed import rank, world_size
from dasl_core.seeds import stream

logger = logging.getLogger(__name__)

# Raised when older caches must not be read: format 1 kept unreadable images as black ones.
CACHE_FORMAT = 2
BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global batch.

    Attributes:
        canvases: (B, C, S, S) uint8.
        valid_hw: (B, 2) int64, height and width of the image within its canvas.
        indices: (N,) int64, positions in the index of all images of the global batch, in rank order.
        step: within the epoch.
    """

    canvases: Tensor
    valid_hw: Tensor
    indices: Tensor
    step: int


class Canvases:
    """All images of an index as canvases, from a cache on disk, or decoded each time if it does not fit.

    Attributes:
        unreadable: images that this process knows cannot be read, with the reasons.
            Their canvases are black. With a cache all are known from the start; without one, only
            those whose file is missing are, and damaged ones become known when they are read.
    """

    def __init__(
        self,
        index: DatasetIndex,
        image_size: int,
        channels: int,
        *,
        cache: Path,
        threads: int,
    ) -> None:
        """Open or build the cache.

        Args:
            cache: a folder for this data set, which several processes may share.
            threads: number of decoding threads.
        """
        self.index = index
        self.channels = channels
        self.side = min(2 * image_size, int(index.sizes.max()))
        self.unreadable: dict[int, str] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._ahead = AHEAD_PER_THREAD * threads
        self._pixels: np.ndarray | None = None
        self._folder: CacheFolder | None = None
        self._valid_hw = _valid_hw(index.sizes, self.side)
        try:
            self._pixels = self._open_cache(cache) if index.on_disk else None
        except OSError as error:  # a full disk, no permission: train without a cache
            logger.warning(
                "decoded images cannot be cached (%s): every epoch decodes them again", error
            )
        if self._pixels is None and index.on_disk:
            self.unreadable = self._missing()
        for position in sorted(self.unreadable)[:PATHS_REPORTED]:
            self._warn(position)

    def read(self, indices: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """Canvases (B, C, S, S) uint8 and valid heights and widths (B, 2) int64 of some images."""
        positions = np.asarray(indices, dtype=np.int64)
        if self._pixels is None:
            pixels = np.stack(list(self._pool.map(self._draw_or_black, positions.tolist())))
        else:
            pixels = self._pixels[positions]
            if self.unreadable:  # another process may be writing them
                pixels[np.isin(positions, list(self.unreadable))] = 0
        return torch.from_numpy(pixels), torch.from_numpy(self._valid_hw[positions])

    def close(self) -> None:
        """Stop the decoding threads, and release the cache."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            self._folder.close()

    def _draw(self, index: int) -> np.ndarray | str:
        """Decode an image to its canvas; return the reason if it cannot be read."""
        height, width = self._valid_hw[index]
        try:
            pixels = self.index.decode(index, self.channels)
        except ValueError as error:
            return str(error)
        if pixels.shape[:2] != (height, width):
            image = Image.fromarray(pixels if self.channels == 3 else pixels[:, :, 0])
            resized = image.resize(
                (int(width), int(height)), Image.Resampling.BOX, reducing_gap=3.0
            )
            pixels = np.asarray(resized).reshape(height, width, self.channels)
        canvas = self._black()
        canvas[:, :height, :width] = pixels.transpose(2, 0, 1)
        return canvas

    def _draw_or_black(self, index: int) -> np.ndarray:
        canvas = self._draw(index)
        if isinstance(canvas, np.ndarray):
            return canvas
        if index not in self.unreadable:  # logged once, not in every epoch
            self.unreadable[index] = canvas
            self._warn(index)
        return self._black()

    def _black(self) -> np.ndarray:
        return np.zeros(self._shape()[1:], dtype=np.uint8)

    def _warn(self, index: int) -> None:
        logger.warning(
            "%s can no longer be read: %s", self.index.paths[index], self.unreadable[index]
        )

    def _missing(self) -> dict[int, str]:
        """Images whose files are missing or empty, which is known without decoding."""

        def reason(index: int) -> str | None:
            try:
                return None if self.index.path(index).stat().st_size else "the file is empty"
            except FileNotFoundError:
                return "the file does not exist"
            except OSError as error:
                return f"the file cannot be read: {error.strerror}"
            except ValueError as error:
                return str(error)

        reasons = enumerate(bounded_map(self._pool, reason, range(len(self.index)), self._ahead))
        return {index: why for index, why in reasons if why is not None}

    def _shape(self) -> tuple[int, int, int, int]:
        return (len(self.index), self.channels, self.side, self.side)

    def _cache_file(self, cache: Path) -> Path:
        content = hashlib.blake2b(digest_size=16)
        content.update(repr((CACHE_FORMAT, str(self.index.root), self._shape())).encode())
        for path in self.index.paths:
            content.update(path.encode() + b"\0")
        content.update(self.index.sizes.tobytes())
        return cache / f"canvases-{content.hexdigest()}.npy"

    def _open_cache(self, cache: Path) -> np.ndarray | None:
        """The pixels of all images; None if too few images can be read for a cache."""
        self._folder = CacheFolder(cache)
        target = self._cache_file(cache)
        # One rank on this machine, among all jobs on this data set, builds; the others wait.
        with locked(target.with_suffix(".lock")):
            if self._is_intact(target):
                self._repair_cache(target)
            elif too_many(len(self._missing()), len(self.index)):
                return None
            else:
                self._build_cache(self._folder, target)
        pixels: np.ndarray = np.load(target, mmap_mode="r")
        return pixels

    def _is_intact(self, target: Path) -> bool:
        """Whether there is a cache of the right shape, with a readable list of unreadable images.

        Only a damaged file system leaves another one.
        """
        try:
            shape = np.load(target, mmap_mode="r").shape
            _read_list(target)
        except FileNotFoundError:
            return False
        except (ValueError, EOFError) as error:
            logger.warning("the cache %s is damaged (%s) and is rebuilt", target, error)
            return False
        return bool(shape == self._shape())

    def _build_cache(self, folder: CacheFolder, target: Path) -> None:
        # A fixed name, used under the lock: the file of a killed process is overwritten.
        partial = target.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": self._shape()}
        )
        pixels = int(np.prod(self._shape(), dtype=np.int64))
        unreadable: dict[int, str] = {}
        try:
            folder.reserve(partial, len(header.getvalue()) + pixels)
            with open(partial, "r+b") as file:
                file.write(header.getvalue())
                canvases = bounded_map(self._pool, self._draw, range(len(self.index)), self._ahead)
                for index, canvas in enumerate(canvases):
                    if isinstance(canvas, str):
                        unreadable[index] = canvas
                        canvas = self._black()
                    file.write(canvas.tobytes())
                file.flush()
                os.fsync(file.fileno())
            # The list first: a process killed in between leaves a list without a cache, which the next
            # build replaces, and never a cache with unlisted black images.
            _write_list(target, unreadable)
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self.unreadable = unreadable

    def _repair_cache(self, target: Path) -> None:
        """Retry the images that could not be read when the cache was built, and write them in place."""
        listed = _read_list(target)
        if not listed:
            return
        size = int(np.prod(self._shape()[1:]))
        start = target.stat().st_size - size * len(self.index)
        unreadable: dict[int, str] = {}
        with open(target, "r+b") as file:
            canvases = bounded_map(self._pool, self._draw, listed, self._ahead)
            for index, canvas in zip(listed, canvases, strict=True):
                if isinstance(canvas, str):
                    unreadable[index] = canvas
                else:
                    file.seek(start + index * size)
                    file.write(canvas.tobytes())
            file.flush()
            os.fsync(file.fileno())
        # Last: a process killed before this leaves them listed, so they are read again.
        if len(unreadable) < len(listed):
            _write_list(target, unreadable)
        self.unreadable = unreadable


def _write_list(cache: Path, unreadable: Iterable[int]) -> None:
    """Write the list of unreadable, black images beside a cache; no file when there are none."""
    listed = cache.with_suffix(".unreadable")
    indices = sorted(unreadable)
    if not indices:
        listed.unlink(missing_ok=True)
        return
    write_atomically(listed, json.dumps(indices).encode())


def _read_list(cache: Path) -> list[int]:
    try:
        indices: list[int] = json.loads(cache.with_suffix(".unreadable").read_bytes())
    except FileNotFoundError:
        return []
    return indices


def _valid_hw(sizes: np.ndarray, side: int) -> np.ndarray:
    """Compute (N, 2) int64 heights and widths within a canvas from image sizes (N, 2), width first."""
    scale = np.minimum(1.0, side / sizes.max(axis=1, keepdims=True))
    valid_hw: np.ndarray = np.maximum(1, np.round(sizes[:, ::-1] * scale)).astype(np.int64)
    return valid_hw


class EpochLoader:
    """Batches of a rank, in an order that depends only on the seed and the epoch.

    Every rank permutes all images alike and takes a contiguous share of each global batch, so the
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
        """Batches of one epoch from `first_step` on, prefetched in a thread."""
        order = self._order(stream(self.seed, "order", epoch)).numpy()
        share = self.batch_size // world_size()
        begin = rank() * share

        def read(step: int) -> Batch:
            first = step * self.batch_size + begin
            chosen = self.indices[order[first : first + share]]
            pixels, valid_hw = self.canvases.read(chosen)
            batch = self.indices[order[first - begin : first - begin + self.batch_size]]
            return Batch(pixels, valid_hw, torch.from_numpy(batch), step)

        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            yield from bounded_map(reader, read, range(first_step, self.steps), BATCHES_AHEAD)

    def _order(self, generator: torch.Generator) -> Tensor:
        """Positions in `indices` for an epoch, batch after batch."""
        if self.samples_per_class is None or self.labels is None:
            return torch.randperm(len(self.indices), generator=generator)
        return class_balanced_order(self.labels, self.samples_per_class, self.batch_size, generator)
