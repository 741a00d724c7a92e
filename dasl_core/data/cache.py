"""Cache folders of decoded images, one for each data set, with a limit on their total size.

A process holds a shared lock on the folder that it uses. Eviction is LRU over whole folders and skips
locked ones.
"""

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

DIRECTORY_VARIABLE = "DASL_CACHE_DIR"
MAX_BYTES_VARIABLE = "DASL_CACHE_MAX_BYTES"
MAX_BYTES = 100 << 30
# A cache takes at most this share of the free space of its disk.
SHARE_OF_FREE_DISK = 0.5
# Names of the files in a cache folder; nothing else is ever removed.
FILES = ("canvases-*", "index.json.gz")
_IN_USE, _ROOM = "in-use", ".room"


def cache_root() -> Path:
    """The folder of all cache folders, from the environment."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or os.path.expanduser("~/.cache/dasl"))


def max_bytes() -> int:
    """The size limit of all folders together, from the environment.

    Raises:
        ValueError: the variable is not a number of bytes.
    """
    value = os.environ.get(MAX_BYTES_VARIABLE, "")
    if value and not (value.isascii() and value.isdigit()):
        raise ValueError(f"{MAX_BYTES_VARIABLE} must be a number of bytes; given {value!r}")
    return int(value) if value else MAX_BYTES


@contextmanager
def locked(file: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Wait for the lock of this file among all processes of the machine, and hold it within the block.

    Args:
        wait: called again and again while another process holds the lock; it should sleep a little.
    """
    with open(file, "a", encoding="utf-8") as lock:
        while wait is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait()
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class CacheFolder:
    """The cache folder of one data set, which is not evicted while this is open.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            path.mkdir(parents=True, exist_ok=True)
            # Locked until `close`, or until the process ends in any way.
            self._use = open(path / _IN_USE, "a", encoding="utf-8")  # noqa: SIM115
            fcntl.flock(self._use, fcntl.LOCK_SH)
            if _exists_as(self._use, path / _IN_USE):
                break
            self._use.close()  # The folder was evicted during the wait.
        os.utime(path / _IN_USE)

    def close(self) -> None:
        """Allow the folder to be evicted."""
        self._use.close()

    def reserve(self, file: Path, size: int) -> None:
        """Create `file` with this size, evicting folders of other data sets if necessary.

        Raises:
            OSError: there is no room.
        """
        most = max_bytes()
        # Sizes must not change between counting and reserving.
        with locked(self.path.parent / _ROOM):
            folders = {folder: _size(folder) for folder in _folders(self.path.parent)}
            for folder in sorted(folders, key=_used_at):
                if size + sum(folders.values()) <= most:
                    break
                if size <= most and _remove(folder):
                    del folders[folder]
            if size + sum(folders.values()) > most:
                raise OSError(
                    errno.ENOSPC,
                    f"they take {size >> 20} MiB, and of the {most >> 20} MiB of {MAX_BYTES_VARIABLE} "
                    f"{sum(folders.values()) >> 20} are in use",
                )
            free = shutil.disk_usage(self.path).free
            if size > free * SHARE_OF_FREE_DISK:
                raise OSError(
                    errno.ENOSPC,
                    f"they take {size >> 20} MiB, more than {SHARE_OF_FREE_DISK:.0%} of the "
                    f"{free >> 20} MiB that are free in {self.path}",
                )
            with open(file, "wb") as reserved:
                # At its full size, so that other processes count it before it is written.
                reserved.truncate(size)


def _folders(root: Path) -> list[Path]:
    return [folder for folder in root.iterdir() if folder.is_dir() and any(_files(folder))]


def _files(folder: Path) -> Iterator[Path]:
    return itertools.chain.from_iterable(map(folder.glob, FILES))


def _size(folder: Path) -> int:
    total = 0
    for file in _files(folder):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue  # It was renamed or removed in the meantime.
    return total


def _used_at(folder: Path) -> float:
    used = folder / _IN_USE
    return (used if used.exists() else folder).stat().st_mtime


def _remove(folder: Path) -> bool:
    """Remove a folder's files unless a process uses them."""
    with open(folder / _IN_USE, "a", encoding="utf-8") as use:
        try:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for file in _files(folder):
            file.unlink(missing_ok=True)
        (folder / _IN_USE).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
    return True


def _exists_as(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
