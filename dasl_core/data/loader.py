"""From an index to batches: canvases of one size, kept on disk, read ahead of the training step.

A *canvas* is an image decoded once, scaled down (never up) so that its longer side is at most twice
the training resolution, and laid into the upper left of a square. Random crops are then taken on the
device from pixels finer than they need, with a bilinear filter that reduces by at most two.
"""

import fcntl
import hashlib
import io
import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dasl_core.atomic import write_atomically
from dasl_core.data.cache import CacheFolder
from dasl_core.data.decode import decode_image
from dasl_core.data.index import DatasetIndex
from dasl_core.data.sampler import class_balanced_order
from dasl_core.data.unreadable import PATHS_TOLD, too_many
from dasl_core.distributed import rank, world_size
from dasl_core.seeds import stream

log = logging.getLogger(__name__)

# Raised when older caches must not be read: those of 1 kept unreadable images as black ones.
CACHE_FORMAT = 2


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
    """All images of an index as canvases, from a cache on disk where it fits, else decoded anew.

    Attributes:
        unreadable: position of each image that cannot be read, as far as this process knows, and
            why. It is black. With a cache all are known from the start; without one, those whose
            file is gone are, and damaged ones are found when they are read.
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
        """`cache`: a folder for this data set, which several processes may share."""
        self.index = index
        self.channels = channels
        self.side = min(2 * image_size, int(index.sizes.max()))
        self.unreadable: dict[int, str] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._pixels: np.ndarray | None = None
        self._folder: CacheFolder | None = None
        self._heights_widths = _canvas_extents(index.sizes, self.side)
        try:
            self._pixels = self._open_cache(cache)
        except OSError as error:  # a full disk, no right to write: the run goes on without
            log.warning("decoded images cannot be kept (%s): every epoch decodes them anew", error)
        if self._pixels is None:
            self.unreadable = self._missing()
        for sample in sorted(self.unreadable)[:PATHS_TOLD]:
            self._warn(sample)

    def read(self, samples: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """Canvases (B, C, S, S) uint8 and extents (B, 2) int64 of the samples."""
        positions = np.asarray(samples, dtype=np.int64)
        if self._pixels is None:
            pixels = np.stack(list(self._pool.map(self._draw_or_black, positions.tolist())))
        else:
            pixels = self._pixels[positions]
            if self.unreadable:  # whatever another process writes there meanwhile
                pixels[np.isin(positions, list(self.unreadable))] = 0
        return torch.from_numpy(pixels), torch.from_numpy(self._heights_widths[positions])

    def close(self) -> None:
        """End the decoding threads, and let go of the cache."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            self._folder.close()

    def _draw(self, sample: int) -> np.ndarray | str:
        """An image's canvas, or why there is none."""
        height, width = self._heights_widths[sample]
        try:
            pixels = decode_image(self.index.path(sample), self.channels)
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

    def _draw_or_black(self, sample: int) -> np.ndarray:
        canvas = self._draw(sample)
        if isinstance(canvas, np.ndarray):
            return canvas
        if sample not in self.unreadable:  # told once, not in every epoch
            self.unreadable[sample] = canvas
            self._warn(sample)
        return self._black()

    def _black(self) -> np.ndarray:
        return np.zeros(self._shape()[1:], dtype=np.uint8)

    def _warn(self, sample: int) -> None:
        log.warning(
            "%s can no longer be read: %s", self.index.paths[sample], self.unreadable[sample]
        )

    def _missing(self) -> dict[int, str]:
        """Images whose files are gone or empty: what can be known without decoding anything."""

        def why(sample: int) -> str | None:
            try:
                return None if self.index.path(sample).stat().st_size else "the file is empty"
            except FileNotFoundError:
                return "the file does not exist"
            except OSError as error:
                return f"the file cannot be read: {error.strerror}"
            except ValueError as error:
                return str(error)

        reasons = enumerate(self._pool.map(why, range(len(self.index))))
        return {sample: reason for sample, reason in reasons if reason is not None}

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
        """The pixels of all images; None where so few can be read that a cache is not worth it."""
        self._folder = CacheFolder(cache)
        target = self._cache_file(cache)
        # Ranks of one machine, and jobs on one data set, meet here: one builds, the others wait.
        with open(target.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_whole(target):
                self._mend_cache(target)
            elif too_many(len(self._missing()), len(self.index)):
                return None
            else:
                self._build_cache(self._folder, target)
        pixels: np.ndarray = np.load(target, mmap_mode="r")
        return pixels

    def _is_whole(self, target: Path) -> bool:
        """Whether there is a cache with room for all images, and a list that can be read. Nothing that
        DASL does leaves another one; a file system that was damaged may."""
        try:
            shape = np.load(target, mmap_mode="r").shape
            _read_list(target)
        except FileNotFoundError:
            return False
        except (ValueError, EOFError) as error:
            log.warning("the cache %s is damaged (%s) and is made anew", target, error)
            return False
        return bool(shape == self._shape())

    def _build_cache(self, folder: CacheFolder, target: Path) -> None:
        # One name for all, who hold the lock: what a killed process left is written over.
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
                canvases = self._pool.map(self._draw, range(len(self.index)))
                for sample, canvas in enumerate(canvases):
                    if isinstance(canvas, str):
                        unreadable[sample] = canvas
                        canvas = self._black()
                    file.write(canvas.tobytes())
                file.flush()
                os.fsync(file.fileno())
            # The list first: a process killed in between leaves a list without a cache, which the
            # next one replaces, and never a cache whose black images nobody knows of.
            _write_list(target, unreadable)
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self.unreadable = unreadable

    def _mend_cache(self, target: Path) -> None:
        """Read again what could not be read when the cache was built, and write it in place."""
        listed = _read_list(target)
        if not listed:
            return
        size = int(np.prod(self._shape()[1:]))
        start = target.stat().st_size - size * len(self.index)
        unreadable: dict[int, str] = {}
        with open(target, "r+b") as file:
            for sample, canvas in zip(listed, self._pool.map(self._draw, listed), strict=True):
                if isinstance(canvas, str):
                    unreadable[sample] = canvas
                else:
                    file.seek(start + sample * size)
                    file.write(canvas.tobytes())
            file.flush()
            os.fsync(file.fileno())
        # Only now: a process killed before this leaves them listed, and they are read once more.
        if len(unreadable) < len(listed):
            _write_list(target, unreadable)
        self.unreadable = unreadable


def _write_list(cache: Path, unreadable: Iterable[int]) -> None:
    """Keep beside a cache which of its images are only black; no file when there are none."""
    listed = cache.with_suffix(".unreadable")
    samples = sorted(unreadable)
    if not samples:
        listed.unlink(missing_ok=True)
        return
    write_atomically(listed, json.dumps(samples).encode())


def _read_list(cache: Path) -> list[int]:
    try:
        samples: list[int] = json.loads(cache.with_suffix(".unreadable").read_bytes())
    except FileNotFoundError:
        return []
    return samples


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

    def __init__(
        self,
        canvases: Canvases,
        samples: np.ndarray,
        batch_size: int,
        seed: int,
        *,
        labels: Tensor | None = None,
        samples_per_class: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            samples: positions in the index to train on.
            batch_size: global.
            labels: (len(samples),) int64 classes, for `samples_per_class`.
            samples_per_class: images of each class in a global batch (`class_balanced_order`); None
                takes each image once an epoch, whatever its class.
        """
        if batch_size > len(samples):
            raise ValueError(
                f"train.batch_size is {batch_size}, but only {len(samples)} images are left for "
                "training"
            )
        assert batch_size % world_size() == 0, "JobSpec checks that ranks share a batch evenly"
        assert samples_per_class is None or labels is not None, (
            "resolve checks that there are classes"
        )
        self.labels, self.samples_per_class = labels, samples_per_class
        self.canvases = canvases
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.steps = len(samples) // batch_size

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Batches of one epoch from `first_step` on, each read while the one before is used."""
        order = self._order(stream(self.seed, "order", epoch)).numpy()
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

    def _order(self, generator: torch.Generator) -> Tensor:
        """Positions in `samples` of an epoch, batch after batch."""
        if self.samples_per_class is None or self.labels is None:
            return torch.randperm(len(self.samples), generator=generator)
        return class_balanced_order(self.labels, self.samples_per_class, self.batch_size, generator)
