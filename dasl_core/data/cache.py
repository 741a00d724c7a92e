"""Folders of decoded images, one for each data set, that together stay within a bound.

A process holds a shared lock on the folder that it uses. Who needs room removes whole folders that
nobody holds, those first that were not used for longest.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MAX_BYTES_VARIABLE = "DASL_CACHE_MAX_BYTES"
MAX_BYTES = 100 << 30
# A cache never takes more than this share of what is free on its disk.
SHARE_OF_FREE_DISK = 0.5
# What the cache makes is called so, and nothing else is ever removed.
FILES = "canvases-*"
_IN_USE, _ROOM = "in-use", ".room"


def max_bytes() -> int:
    """How much all folders may take, from the environment.

    Raises:
        ValueError: what stands there is no number of bytes.
    """
    given = os.environ.get(MAX_BYTES_VARIABLE, "")
    if given and not (given.isascii() and given.isdigit()):
        raise ValueError(f"{MAX_BYTES_VARIABLE} must be a number of bytes; given {given!r}")
    return int(given) if given else MAX_BYTES


class CacheFolder:
    """A data set's folder beside those of others; it stays as long as this is open.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            path.mkdir(parents=True, exist_ok=True)
            # Held until `close`, or until the process ends, however it does.
            self._use = open(path / _IN_USE, "a", encoding="utf-8")  # noqa: SIM115
            fcntl.flock(self._use, fcntl.LOCK_SH)
            if _is_there(self._use, path / _IN_USE):
                break
            self._use.close()  # It was removed while this waited.
        os.utime(path / _IN_USE)

    def close(self) -> None:
        """From now on the folder may be removed."""
        self._use.close()

    def reserve(self, file: Path, size: int) -> None:
        """Make `file`, of this many bytes, for which folders of others go if they must.

        Raises:
            OSError: there is no room.
        """
        most = max_bytes()
        with _alone(self.path.parent):
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
            if size > shutil.disk_usage(self.path).free * SHARE_OF_FREE_DISK:
                raise OSError(errno.ENOSPC, f"they take {size >> 20} MiB")
            with open(file, "wb") as reserved:
                # Of this size from now on: others count it before it is written.
                reserved.truncate(size)


def _folders(root: Path) -> list[Path]:
    return [folder for folder in root.iterdir() if folder.is_dir() and any(folder.glob(FILES))]


def _size(folder: Path) -> int:
    total = 0
    for file in folder.glob(FILES):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue  # It was renamed or removed meanwhile.
    return total


def _used_at(folder: Path) -> float:
    used = folder / _IN_USE
    return (used if used.exists() else folder).stat().st_mtime


def _remove(folder: Path) -> bool:
    """Remove a folder's files unless somebody uses them."""
    with open(folder / _IN_USE, "a", encoding="utf-8") as use:
        try:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for file in folder.glob(FILES):
            file.unlink(missing_ok=True)
        (folder / _IN_USE).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
    return True


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One process at a time: what one counts must not change before it has reserved its share."""
    with open(root / _ROOM, "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_there(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
