"""The file of a data set's raw canvases."""

import errno
import io
import json
import logging
import os
from contextlib import closing

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.cache import NO_ROOM, CacheFolder
from dasl_core.data.cache_build import CacheBuild, OnRead
from dasl_core.data.drawing import Drawer

logger = logging.getLogger(__name__)

# Raised when older caches must not be read.
_FORMAT = 1
_FLUSH_BYTES = 64 << 20


class CanvasFile(CacheBuild):
    """The canvases (N, C, S, S) of all images of an index, in one file; those of unreadable images are black.

    The file has its final size from the start. `NAME.state` has the number of canvases that are on the disk, from
    the first one on, and the unreadable images. It is written after them, so a build resumes behind the last flush.

    NAME depends on everything that determines the content.
    """

    def __init__(self, folder: CacheFolder, drawer: Drawer, on_read: OnRead) -> None:
        self._folder, self._digest = folder, drawer.digest(_FORMAT)
        self._file = folder.path / f"canvases-{self._digest}.npy"
        self._state = self._file.with_suffix(".state")
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": drawer.dtype.str, "fortran_order": False, "shape": drawer.shape}
        )
        self._header = header.getvalue()
        self._size = len(self._header) + drawer.shape[0] * drawer.canvas_bytes
        self._descriptor: int | None = None
        self._failed_before: int | None = None  # set by the first `_wait`
        super().__init__(drawer, self._file, on_read)

    def open(self) -> np.ndarray | None:
        """Map the canvases; build them first if necessary. None if too few images can be read.

        Raises:
            OSError: there is no room for the file, or it cannot be written.
        """
        self._folder.use(self._digest)
        try:
            if not self.run():
                return None
        finally:
            if self._descriptor is not None:  # the threads that write to it have ended
                os.close(self._descriptor)
        canvases: np.ndarray = np.load(self._file, mmap_mode="r")
        return canvases

    def _is_complete(self) -> bool:
        return self._read_state() == self._drawer.shape[0]

    def _wait(self) -> None:
        if self._failed_before is None:
            self._failed_before = self._lock.stat().st_mtime_ns
        super()._wait()

    def _build(self) -> None:
        images, written = self._drawer.shape[0], self._read_state()
        if not written and self._failed_before not in (None, self._lock.stat().st_mtime_ns):
            # Otherwise each of many ranks would decode for hours before failing.
            raise OSError(errno.ENOSPC, f"another process could not write {self._file}")
        try:
            if not written:
                self._begin()
            self._descriptor = os.open(self._file, os.O_RDWR)
            images_per_flush = -(-_FLUSH_BYTES // self._drawer.canvas_bytes)
            with closing(self._records(range(written, images))) as records:
                for number, record in enumerate(records, written + 1):
                    if isinstance(record, str):
                        self.unreadable[number - 1] = record
                    if number % images_per_flush == 0 or number == images:
                        self._save_state(number)
                    self._report(number)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise  # the next process resumes
            self._remove()
            # Waiting processes read the lock's time; updating it needs no disk space.
            os.utime(self._lock)
            message = f"{error.strerror}; {self._file} takes {self._size >> 20} MiB"
            raise OSError(error.errno, message) from error

    def _begin(self) -> None:
        """Reserve the file at its full size."""
        self._remove()
        self._folder.reserve(self._file, self._size)
        with open(self._file, "r+b") as file:
            file.write(self._header)

    def _record(self, position: int) -> bytes | str:
        """Draw an image into the file; return nothing, or why it cannot be read."""
        assert self._descriptor is not None, "opened by `_build`"
        pixels = self._drawer.draw_valid(position)
        # Black overwrites what a killed process has left.
        content = self._drawer.place(pixels).reshape(-1).view(np.uint8).data
        offset = len(self._header) + position * self._drawer.canvas_bytes
        while content:
            count = os.pwrite(self._descriptor, content, offset)
            content, offset = content[count:], offset + count
        return pixels if isinstance(pixels, str) else b""

    def _retry(self) -> bool:
        is_changed = super()._retry()
        if is_changed:
            self._save_state(self._drawer.shape[0])  # after a kill before this, they are retried
        return is_changed

    def _read_state(self) -> int:
        """Return the number of canvases on the disk, and set `unreadable`; 0 if the file must be built from scratch."""
        self.unreadable = {}
        try:
            canvases = np.load(self._file, mmap_mode="r")
            if (canvases.shape, canvases.dtype) != (self._drawer.shape, self._drawer.dtype):
                raise ValueError(f"it has the shape {canvases.shape}")
            written, unreadable = json.loads(self._state.read_bytes())
            self.unreadable = {int(position): str(reason) for position, reason in unreadable}
            return int(written)
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError, EOFError) as error:  # damage to the file system
            logger.warning("the cache %s is damaged (%s) and is rebuilt", self._file, error)
            return 0

    def _save_state(self, written: int) -> None:
        """Flush the file, then save the number of canvases in it and the unreadable images."""
        assert self._descriptor is not None, "opened by `_build`"
        os.fsync(self._descriptor)
        write_atomically(
            self._state, json.dumps([written, sorted(self.unreadable.items())]).encode()
        )

    def _remove(self) -> None:
        # The state first: alone, it would be taken for that of the next file.
        for file in (self._state, self._file, self._progress):
            file.unlink(missing_ok=True)
