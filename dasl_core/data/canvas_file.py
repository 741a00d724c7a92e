"""The file of a data set's canvases: built once, by one process, and continued after a kill."""

import errno
import hashlib
import io
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.build_progress import BuildProgress
from dasl_core.data.cache import NO_ROOM, CacheFolder
from dasl_core.data.decode import is_transient
from dasl_core.data.drawing import Drawer
from dasl_core.data.strings import Strings
from dasl_core.data.unreadable import too_many
from dasl_core.locks import locked
from dasl_core.machine import decoding_budget, usable_cores

logger = logging.getLogger(__name__)

# Raised when older caches must not be read.
_FORMAT = 1
_REPORT_SECONDS = 0.5
_WAIT_SECONDS = 0.2
_CHECKSUM = np.dtype("<u4")
_FLUSH_BYTES = 64 << 20

Result = TypeVar("Result")
OnRead = Callable[[int], None]
"""Called every few images with the number of images read; an exception stops the reading."""


class CanvasFile:
    """The canvases (N, C, S, S) of all images of an index, in a file.

    One process among all ranks and jobs of the machine builds the file, with all cores, while the others
    wait. Until it is complete, these files exist in addition to `NAME.lock`:

    * `NAME.partial`, which has the final size from the start;
    * `NAME.checksums`: CRC-32 of each canvas, written after it; 0 for images not drawn yet. A canvas
      counts only if its checksum matches, so a build resumes after a kill or a power loss;
    * `NAME.progress`: the number of images read, for the processes that wait.

    NAME depends on everything that determines the content.

    Attributes:
        unreadable: images that cannot be read, with the reasons; their canvases are black.
    """

    def __init__(self, folder: CacheFolder, drawer: Drawer) -> None:
        self._folder, self._drawer = folder, drawer
        self._digest = canvas_digest(drawer, _FORMAT)
        self._file = folder.path / f"canvases-{self._digest}.npy"
        self._partial = self._file.with_suffix(".partial")
        self._checksums = self._file.with_suffix(".checksums")
        self._progress = BuildProgress(self._file.with_suffix(".progress"))
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": drawer.dtype.str, "fortran_order": False, "shape": drawer.shape}
        )
        self._header = header.getvalue()
        self._canvas_size = drawer.black().nbytes
        self._size = len(self._header) + drawer.shape[0] * self._canvas_size
        self.unreadable: dict[int, str] = {}

    def open(self, on_read: OnRead) -> np.ndarray | None:
        """Map the canvases; build them first if necessary. None if too few images can be read.

        Raises:
            OSError: there is no room for the file, or it cannot be written.
        """
        self._folder.use(self._digest)
        failed_before: int | None = None  # set by the first `wait`
        lock = self._file.with_suffix(".lock")

        def wait() -> None:
            nonlocal failed_before
            if failed_before is None:
                failed_before = lock.stat().st_mtime_ns
            on_read(self._progress.read())
            time.sleep(_WAIT_SECONDS)

        with locked(lock, wait):
            if self._is_intact():
                self._remove_partial()  # left by a process killed after the last image
                self._repair()
            elif failed_before not in (None, lock.stat().st_mtime_ns):
                # Otherwise each of many ranks would decode for hours before failing.
                raise OSError(errno.ENOSPC, f"another process could not write {self._file}")
            elif too_many(len(self._drawer.missing(lambda: on_read(0))), self._drawer.shape[0]):
                return None
            else:
                self._build(on_read)
        canvases: np.ndarray = np.load(self._file, mmap_mode="r")
        return canvases

    def _is_intact(self) -> bool:
        """Whether the file has the right shape and a readable list of unreadable images.

        It is otherwise only after damage to the file system.
        """
        try:
            canvases = np.load(self._file, mmap_mode="r")
            _read_list(self._file)
        except FileNotFoundError:
            return False
        except (ValueError, EOFError) as error:
            logger.warning("the cache %s is damaged (%s) and is rebuilt", self._file, error)
            return False
        return bool(canvases.shape == self._drawer.shape and canvases.dtype == self._drawer.dtype)

    def _build(self, on_read: OnRead) -> None:
        try:
            written = self._begin()
            with (
                open(self._partial, "r+b", buffering=0) as canvases,
                open(self._checksums, "r+b", buffering=0) as checksums,
                _decoding_pool() as pool,  # ends before the files are closed
            ):

                def fill(position: int) -> str | None:
                    checksum = int(written[position])
                    return self._fill(position, checksum, canvases.fileno(), checksums.fileno())

                self._follow(self._map(pool, fill, range(len(written))), on_read, canvases.fileno())
                os.fsync(canvases.fileno())
            # The list first: a process killed in between leaves a list without a file, which the next
            # build replaces, and never a file with unlisted black images.
            _write_list(self._file, self.unreadable)
            self._partial.replace(self._file)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise  # the next process resumes
            self._remove_partial()
            # Waiting processes read the lock's time; updating it needs no disk space.
            os.utime(self._file.with_suffix(".lock"))
            message = f"{error.strerror}; {self._file} takes {self._size >> 20} MiB"
            raise OSError(error.errno, message) from error
        self._remove_partial()

    def _begin(self) -> np.ndarray:
        """Return the checksums (N,) of canvases already written; reserve the file if there are none."""
        images = self._drawer.shape[0]
        try:
            with open(self._partial, "rb") as partial:
                header = partial.read(len(self._header))
            written = np.fromfile(self._checksums, _CHECKSUM)
            if (
                header == self._header
                and self._partial.stat().st_size == self._size
                and len(written) == images
            ):
                logger.info("continuing with %s", self._partial)
                return written
        except FileNotFoundError:
            pass
        self._remove_partial()
        self._folder.reserve(self._partial, self._size)
        with open(self._partial, "r+b") as partial:
            partial.write(self._header)
        with open(self._checksums, "wb") as checksums:
            # Last, and with one call: without checksums, the next process starts from scratch.
            checksums.truncate(images * _CHECKSUM.itemsize)
        return np.zeros(images, _CHECKSUM)

    def _fill(self, position: int, checksum: int, canvases: int, checksums: int) -> str | None:
        """Draw an image into the file unless it is there; return the reason if it cannot be read.

        Args:
            checksum: checksum of the canvas if it was written already; 0 otherwise.
            canvases: file descriptor of the canvases.
            checksums: file descriptor of the checksums.
        """
        size = self._canvas_size
        offset = len(self._header) + position * size
        if checksum and zlib.crc32(os.pread(canvases, size, offset)) == checksum:
            return None
        canvas = self._drawer.draw(position)
        if isinstance(canvas, str):
            # Overwrites a partial canvas of a killed process; the next process retries it.
            _write(canvases, self._drawer.black(), offset)
            return canvas
        _write(canvases, canvas, offset)
        entry = np.array(zlib.crc32(canvas.data), _CHECKSUM)
        _write(checksums, entry, position * _CHECKSUM.itemsize)
        return None

    def _follow(
        self, reasons: Generator[str | None, None, None], on_read: OnRead, canvases: int
    ) -> None:
        """Wait for all images, and report how many are read.

        Args:
            canvases: file descriptor, flushed repeatedly so that dirty pages do not fill the memory.
        """
        self.unreadable = {}
        report_at = 0.0
        images_per_flush = -(-_FLUSH_BYTES // self._canvas_size)
        with closing(reasons):
            for position, reason in enumerate(reasons):
                if reason is not None:
                    self.unreadable[position] = reason
                if position % images_per_flush == images_per_flush - 1:
                    os.fsync(canvases)
                if time.monotonic() >= report_at:
                    self._progress.write(position + 1)
                    on_read(position + 1)
                    report_at = time.monotonic() + _REPORT_SECONDS

    def _map(
        self,
        pool: ThreadPoolExecutor,
        function: Callable[[int], Result],
        positions: Iterable[int],
    ) -> Generator[Result, None, None]:
        """Yield a function's result for each image, computed in parallel."""
        return bounded_map(
            pool,
            function,
            positions,
            AHEAD_PER_THREAD * usable_cores(),
            cost=self._drawer.memory,
            budget=decoding_budget(),
        )

    def _repair(self) -> None:
        """Retry images that failed for transient reasons, and write them in place."""
        self.unreadable = _read_list(self._file)
        listed = [image for image, why in sorted(self.unreadable.items()) if is_transient(why)]
        if not listed:
            return
        with open(self._file, "r+b", buffering=0) as file:
            with _decoding_pool() as pool:
                canvases = self._map(pool, self._drawer.draw, listed)
                for position, canvas in zip(listed, canvases, strict=True):
                    if isinstance(canvas, str):
                        self.unreadable[position] = canvas
                    else:
                        del self.unreadable[position]
                        offset = len(self._header) + position * self._canvas_size
                        _write(file.fileno(), canvas, offset)
            os.fsync(file.fileno())
        # Last: after a kill before this line, they are retried.
        _write_list(self._file, self.unreadable)

    def _remove_partial(self) -> None:
        # The checksums first: left alone, they would be taken for those of the next partial file.
        for file in (self._checksums, self._partial):
            file.unlink(missing_ok=True)
        self._progress.remove()


def _decoding_pool() -> ThreadPoolExecutor:
    """Create a thread pool of all cores, since the other ranks wait."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")


def _write(file: int, array: np.ndarray, offset: int) -> None:
    """Write an array to a descriptor at an offset.

    Raises:
        OSError: the disk is full.
    """
    content = array.reshape(-1).view(np.uint8).data
    while content:
        count = os.pwrite(file, content, offset)
        content, offset = content[count:], offset + count


def canvas_digest(drawer: Drawer, *settings: object) -> str:
    """Compute a digest of everything that determines an index's canvases, and of the file's settings."""
    index = drawer.index
    content = hashlib.blake2b(digest_size=16)
    settings = (*settings, index.location, index.source.choice, drawer.shape, drawer.dtype.str)
    content.update(repr(settings).encode())
    paths = index.paths if isinstance(index.paths, Strings) else Strings.pack(index.paths)
    for array in (paths.data, paths.ends, index.sizes, index.locations):
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()


def _write_list(file: Path, unreadable: Mapping[int, str]) -> None:
    """Write the list of unreadable, black images and the reasons; remove it when there are none."""
    listed = file.with_suffix(".unreadable")
    if not unreadable:
        listed.unlink(missing_ok=True)
        return
    write_atomically(listed, json.dumps(sorted(unreadable.items())).encode())


def _read_list(file: Path) -> dict[int, str]:
    try:
        listed = json.loads(file.with_suffix(".unreadable").read_bytes())
    except FileNotFoundError:
        return {}
    return {int(position): str(reason) for position, reason in listed}
