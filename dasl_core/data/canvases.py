"""Canvases of the images of a data set, from a cache on disk."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.cache import CacheFolder
from dasl_core.data.canvas_file import CanvasFile, OnRead
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.unreadable import PATHS_REPORTED

logger = logging.getLogger(__name__)


class Canvases:
    """All images of an index as canvases, from a cache on disk, or decoded each time if it does not fit.

    Attributes:
        unreadable: images that this process knows cannot be read, with the reasons.
            Their canvases are black. With a cache all are known from the start; without one, only
            those whose file is missing are, and damaged ones become known when they are read.
        not_cached: why there is no cache on disk, as a part of a sentence; None if there is one, or none is wanted.
    """

    def __init__(
        self,
        index: DatasetIndex,
        image_size: int,
        channels: int,
        *,
        cache: Path | None,
        threads: int,
        on_read: OnRead = lambda images: None,
    ) -> None:
        """Open or build the cache.

        Args:
            cache: a folder for this data set, which several processes may share; None: decode each image when it
                is read.
            threads: number of threads that decode images in each epoch if there is no cache. It is
                built with all cores.
            on_read: called while the cache is built, by this or another process, with the number of
                images read so far.
        """
        self.index = index
        self.channels = channels
        self._drawer = Drawer(index, image_size, channels)
        self.side = self._drawer.shape[-1]
        self.unreadable: dict[int, str] = {}
        self.not_cached: str | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._pixels: np.ndarray | None = None
        self._folder: CacheFolder | None = None
        if index.on_disk and cache is not None:
            self._open(cache, on_read)
        for position in sorted(self.unreadable)[:PATHS_REPORTED]:
            self._warn(position)

    def read(self, indices: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """Canvases (B, C, S, S) of the index's type and valid heights and widths (B, 2) int64 of some images."""
        positions = np.asarray(indices, dtype=np.int64)
        if self._pixels is None:
            pixels = np.stack(list(self._pool.map(self._draw_or_black, positions.tolist())))
        else:
            pixels = self._pixels[positions]
            if self.unreadable:  # another process may be writing them
                pixels[np.isin(positions, list(self.unreadable))] = 0
        return torch.from_numpy(pixels), torch.from_numpy(self._drawer.valid_hw[positions])

    @property
    def decodes(self) -> bool:
        """Whether images are decoded in every epoch."""
        return self._pixels is None

    def close(self) -> None:
        """Stop the decoding threads, and release the cache."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            self._folder.close()

    def _open(self, cache: Path, on_read: OnRead) -> None:
        try:
            self._folder = CacheFolder(cache)
            file = CanvasFile(self._folder, self._drawer)
            self._pixels, self.unreadable = file.open(on_read), file.unreadable
        except OSError as error:  # a full disk, no permission: train without a cache
            self.not_cached = str(error)
            logger.warning(
                "decoded images cannot be cached (%s): every epoch decodes them again", error
            )
        if self._pixels is None:
            self.unreadable = self._drawer.missing()

    def _draw_or_black(self, index: int) -> np.ndarray:
        canvas = self._drawer.draw(index)
        if isinstance(canvas, np.ndarray):
            return canvas
        if index not in self.unreadable:  # logged once, not in every epoch
            self.unreadable[index] = canvas
            self._warn(index)
        return self._drawer.black()

    def _warn(self, index: int) -> None:
        logger.warning(
            "%s can no longer be read: %s", self.index.paths[index], self.unreadable[index]
        )
