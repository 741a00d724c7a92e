"""Canvases of the images of a data set, from a cache on disk."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.bounded_map import bounded_map
from dasl_core.data.cache import NO_ROOM, CacheFolder, unwritable
from dasl_core.data.cache_build import OnRead
from dasl_core.data.canvas_file import CanvasFile
from dasl_core.data.coding import Form, build_coding
from dasl_core.data.drawing import Drawer
from dasl_core.data.file_digests import FileDigests
from dasl_core.data.index import DatasetIndex
from dasl_core.data.shard_gathering import Gatherer
from dasl_core.data.shard_store import shared_store
from dasl_core.data.shards import Shards
from dasl_core.data.unreadable import PATHS_REPORTED
from dasl_core.data.unused import begin_removal
from dasl_core.machine import decoding_budget, usable_cores

logger = logging.getLogger(__name__)


class Canvases:
    """All images of an index as canvases, from a cache on disk, or decoded each time if it does not fit.

    The cache is one file of raw canvases where that fits, and else shards of coded ones. Which it is, and
    how much of it fits, does not change the values: those depend only on `form`.

    Attributes:
        unreadable: images that this process knows cannot be read, with the reasons.
            Their canvases are black. With a cache all are known from the start; without one, only
            those whose file is missing are, and damaged ones become known when they are read.
        not_cached: why images are decoded in every epoch, as part of a sentence; None if they are cached or
            no cache was requested.
        num_cached: number of images in the cache or the shared store, when it was opened.
        size: bytes of the cached images on this machine.
        is_shared: whether all nodes have the cached images.
        stored: coding of the shards, and their bytes on this machine; None without shards.
        digests: SHA-256 of the images' files; None if the images are no files.
    """

    def __init__(
        self,
        index: DatasetIndex,
        image_size: int,
        channels: int,
        *,
        cache: Path | None,
        threads: int,
        form: Form = "exact",
        on_read: OnRead = lambda images: None,
    ) -> None:
        """Open or build the cache.

        Args:
            cache: a folder for this data set, which several processes may share; None: decode each image when it
                is read.
            threads: number of threads that decode images in each epoch, if they are not cached raw. The cache
                is built with all cores.
            form: "jpeg" applies JPEG loss to 8-bit canvases of one or three bands.
            on_read: called while the cache is built, by this or another process, with the number of
                images read so far.
        """
        self.index = index
        self.channels = channels
        self._drawer = Drawer(index, image_size, channels)
        form = form if index.on_disk else "exact"
        self._coding = build_coding(form, self._drawer.dtype, channels)
        self.side = self._drawer.shape[-1]
        self.unreadable: dict[int, str] = {}
        self.not_cached: str | None = None
        self.num_cached, self.size, self.is_shared = 0, 0, False
        self.stored: tuple[str, int] | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        # Other ranks of this machine decode with the other cores.
        self._budget = decoding_budget() * threads // max(threads, usable_cores())
        self._pixels: np.ndarray | None = None
        self._folder: CacheFolder | None = None
        self._shards: Shards | None = None
        self.digests: FileDigests | None = None
        if index.on_disk and cache is not None:
            self._open(cache, on_read)
        elif index.on_disk:
            self._keep_digests(None)
        for position in sorted(self.unreadable)[:PATHS_REPORTED]:
            self._warn(position)

    def read(
        self,
        indices: Sequence[int] | np.ndarray,
        on_decoded: Callable[[float], None] = lambda seconds: None,
    ) -> tuple[Tensor, Tensor]:
        """Canvases (B, C, S, S) of the index's type and valid heights and widths (B, 2) int64 of some images.

        Args:
            on_decoded: called with the processor time of the decoding threads if images are decoded.
        """
        positions = np.asarray(indices, dtype=np.int64)
        if self._pixels is None:
            pixels = np.zeros((len(positions), *self._drawer.shape[1:]), self._drawer.dtype)
            seconds = bounded_map(
                self._pool,
                lambda row: self._draw_timed(pixels[row], int(positions[row])),
                range(len(positions)),
                len(positions),
                cost=lambda row: self._memory(int(positions[row])),
                budget=self._budget,
            )
            on_decoded(sum(seconds))  # raises a thread's exception
        else:
            pixels = self._pixels[positions]
            if self.unreadable:  # another process may be writing them
                pixels[np.isin(positions, list(self.unreadable))] = 0
        return torch.from_numpy(pixels), torch.from_numpy(self._drawer.valid_hw[positions])

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self._drawer.dtype.itemsize

    @property
    def decodes(self) -> bool:
        """Whether images are decoded in every epoch."""
        return self._pixels is None

    def close(self) -> None:
        """Stop the decoding threads, and release the cache."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.digests is not None:
            self.digests.close()
        if self._folder is not None:
            self._folder.close()

    def _open(self, cache: Path, on_read: OnRead) -> None:
        try:
            self._folder = CacheFolder(cache)
            self._keep_digests(self._folder)
            begin_removal(cache.parent)
            shards = Shards(self._folder, self._drawer, self._coding, shared_store)
            if not self._coding.lossless or shards.store is not None or shards.is_built:
                self._open_shards(shards, on_read)
                return
            try:
                file = CanvasFile(self._folder, self._drawer, on_read)
                self._pixels, self.unreadable = file.open(), file.unreadable
                if self._pixels is not None:
                    self.num_cached, self.size = len(self._pixels), self._pixels.nbytes
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                logger.info("decoded images are stored in shards: %s", error)
                self._open_shards(shards, on_read)
                return
        except OSError as error:  # a full disk, no permission: train without a cache
            self._decode_again(unwritable(cache, error))
            if self.digests is None:
                self._keep_digests(None)
        if self._pixels is None:
            self.unreadable = self._drawer.missing()

    def _keep_digests(self, folder: CacheFolder | None) -> None:
        """Keep the digests of the files that are read from now on."""
        file = None
        if folder is not None:
            name = self._drawer.digest("sha256")
            folder.use(name)
            file = folder.path / f"canvases-{name}.sha256"
        self.digests = FileDigests(self.index, file)
        self._drawer.digests = self.digests

    def _open_shards(self, shards: Shards, on_read: OnRead) -> None:
        shards.folder.use(shards.digest)
        gatherer = Gatherer(shards, self._drawer, on_read)
        if not gatherer.run():
            self.unreadable = self._drawer.missing()
            return
        self.unreadable = gatherer.unreadable
        if shards.local or shards.remote:
            self._shards = shards
            self.num_cached, self.size = shards.num_images, shards.size
            self.is_shared = len(shards.remote) == shards.count
            self.stored = (self._coding.name, shards.size)
        if gatherer.no_room is not None and shards.store is None:
            missing = self._drawer.missing()
            self.unreadable |= {at: why for at, why in missing.items() if not shards.has(at)}
            cached = f"there is room for {shards.num_local_images} of {len(self.index)} images: "
            self._decode_again((cached if shards.local else "") + gatherer.no_room)

    def _decode_again(self, reason: str) -> None:
        self.not_cached = reason
        logger.warning(
            "decoded images cannot be cached (%s): every epoch decodes them again", reason
        )

    def _draw_timed(self, canvas: np.ndarray, position: int) -> float:
        """Draw an image into its black canvas if it is readable; return this thread's processor time."""
        began = time.thread_time()
        self._draw_into(canvas, position)
        return time.thread_time() - began

    def _draw_into(self, canvas: np.ndarray, position: int) -> None:
        if position in self.unreadable and self._shards is not None:
            return
        pixels = None if self._shards is None else self._shards.read(position)
        if pixels is None:
            drawn = self._drawer.draw_valid(position)
            if isinstance(drawn, str):
                if position not in self.unreadable:  # logged once, not in every epoch
                    self.unreadable[position] = drawn
                    self._warn(position)
                return
            pixels = drawn
            if not self._coding.lossless:  # the same values as from a shard
                pixels = self._coding.decode(self._coding.encode(drawn), drawn.shape)
        _, height, width = pixels.shape
        canvas[:, :height, :width] = pixels

    def _memory(self, position: int) -> int:
        """Estimate the memory in bytes to draw an image; little if a shard has its canvas."""
        if self._shards is not None and self._shards.serves(position):
            return 0
        return self._drawer.memory(position)

    def _warn(self, index: int) -> None:
        logger.warning(
            "%s can no longer be read: %s", self.index.paths[index], self.unreadable[index]
        )
