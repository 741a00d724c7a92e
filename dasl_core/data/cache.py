"""Cache folders of decoded images, one for each data set, with a limit on their total size.

A process holds a shared lock on the folder that it uses. Eviction is LRU over whole folders and skips
locked ones.
"""

import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dasl_core.locks import IN_USE, HeldFile, HeldFolder, locked, unheld

DIRECTORY_VARIABLE = "DASL_CACHE_DIR"
MAX_BYTES_VARIABLE = "DASL_CACHE_MAX_BYTES"
MAX_BYTES = 100 << 30
# Error numbers of a full disk.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Largest share of the disk's free space that a cache may take.
SHARE_OF_FREE_DISK = 0.5
# Names of files in a cache folder; no other file is ever removed.
FILES = ("canvases-*", "index.safetensors")
_ROOM = ".room"


def cache_root() -> Path:
    """The folder of all cache folders, from the environment."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or os.path.expanduser("~/.cache/dasl"))


def max_bytes() -> int:
    """The size limit of all folders together, from the environment; a ValueError if it is not a number of bytes."""
    value = os.environ.get(MAX_BYTES_VARIABLE, "")
    if value and not (value.isascii() and value.isdigit()):
        raise ValueError(f"{MAX_BYTES_VARIABLE} must be a number of bytes; given {value!r}")
    return int(value) if value else MAX_BYTES


class CacheFolder:
    """The cache folder of one data set, not evicted while this is open; an OSError if it cannot be created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[Path, HeldFile] = {path / IN_USE: HeldFolder(path)}
        os.utime(path / IN_USE)

    def use(self, name: str) -> None:
        """Protect the files `canvases-NAME*` from removal as unused until `close`; an OSError if that fails."""
        mark = use_mark(self.path, name)
        self._held[mark] = HeldFile(mark)
        os.utime(mark)

    def close(self) -> None:
        """Release the folder for eviction and update its time of last use."""
        for mark, held in self._held.items():
            with suppress(OSError):
                os.utime(mark)
            held.close()

    def reserve(self, file: Path, size: int, *, existing: int = 0) -> None:
        """Create `file` with this size, evicting folders of other data sets if necessary.

        Args:
            existing: size of the files that the same cache already has.

        Raises:
            OSError: there is no room.
        """
        most = max_bytes()
        # Sizes must not change between counting and reserving.
        with locked(self.path.parent / _ROOM):
            folders = {folder: folder_size(folder) for folder in cache_folders(self.path.parent)}
            for folder in sorted(folders, key=used_at):
                if size + sum(folders.values()) <= most:
                    break
                if size <= most and remove_folder(folder):
                    del folders[folder]
            if size + sum(folders.values()) > most:
                raise OSError(
                    errno.ENOSPC,
                    f"they take {size >> 20} MiB, and of the {most >> 20} MiB of {MAX_BYTES_VARIABLE} "
                    f"{sum(folders.values()) >> 20} are in use",
                )
            free = shutil.disk_usage(self.path).free
            if size + existing > (free + existing) * SHARE_OF_FREE_DISK:
                raise OSError(
                    errno.ENOSPC,
                    f"they take {(size + existing) >> 20} MiB, more than {SHARE_OF_FREE_DISK:.0%} of the "
                    f"{(free + existing) >> 20} MiB that are free in {self.path}",
                )
            with open(file, "wb") as reserved:
                # At its full size, so that other processes count it before it is written.
                reserved.truncate(size)


@contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Context manager that keeps a cache folder from being evicted before it is opened."""
    folder = None
    with suppress(OSError):  # reported when the cache is opened
        folder = CacheFolder(path)
    try:
        yield
    finally:
        if folder is not None:
            folder.close()


def unwritable(folder: Path, error: OSError) -> str:
    """Describe why a cache folder cannot be written, as part of a sentence."""
    return f"{folder} cannot be written: {error.strerror or error}"


def use_mark(folder: Path, name: str) -> Path:
    """Return the lock file held by processes that use the files `canvases-NAME*` of a folder."""
    return folder / f"canvases-{name}.used"


def cache_folders(root: Path) -> list[Path]:
    """Return the cache folders that have files."""
    return [folder for folder in root.iterdir() if folder.is_dir() and any(_files(folder))]


def all_cache_folders(root: Path) -> list[Path]:
    """Return the cache folders of jobs and of standalone runs."""
    if not root.is_dir():
        return []
    parents = [root, *(folder for folder in sorted(root.iterdir()) if folder.is_dir())]
    return [folder for parent in parents for folder in cache_folders(parent)]


def _files(folder: Path) -> Iterator[Path]:
    return itertools.chain.from_iterable(map(folder.glob, FILES))


def folder_size(folder: Path) -> int:
    """Return the bytes of a cache folder's files."""
    total = 0
    for file in _files(folder):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue  # It was renamed or removed in the meantime.
    return total


def used_at(folder: Path) -> float:
    """Return when a cache folder was last opened."""
    used = folder / IN_USE
    return (used if used.exists() else folder).stat().st_mtime


def remove_folder(folder: Path) -> bool:
    """Remove a folder's files unless a process uses them; return whether it did."""
    with unheld(folder / IN_USE) as free:
        if not free:
            return False
        for file in _files(folder):
            file.unlink(missing_ok=True)
        (folder / IN_USE).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
    return True
