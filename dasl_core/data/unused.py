"""Removal of long unused decoded images from the local cache and the shared store.

They remain from deleted data sets, older versions, and other settings. A run marks its set of images as used by a lock on
a file in the cache, and by writing the time into the store while it reads from there. Removing a set too early only costs
time: its images are decoded again, with the same values.
"""

import logging
import os
import re
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from dasl_core.data.cache import cache_folders, remove_folder, use_mark, used_at
from dasl_core.data.shard_store import USED, ShardStore, shared_sets, shared_store
from dasl_core.locks import unheld

logger = logging.getLogger(__name__)

KEEP_VARIABLE = "DASL_KEEP_CACHE_DAYS"
KEEP_DAYS = 30
_DAY = 86400.0
MARK_SECONDS = _DAY / 4
"""Interval at which a run marks the store as used."""
_CHECKED = ".checked"
_SET = re.compile(r"canvases-([0-9a-f]{32})[.-]")


def keep_seconds() -> float:
    """Read from the environment how long unused images are kept; a ValueError if it is no positive number of days."""
    value = os.environ.get(KEEP_VARIABLE, "")
    if value and not (value.isascii() and value.isdigit() and int(value) > 0):
        raise ValueError(f"{KEEP_VARIABLE} must be a positive number of days; given {value!r}")
    return (int(value) if value else KEEP_DAYS) * _DAY


def begin_removal(root: Path) -> None:
    """Start `remove_unused` in a thread, unless it ran on this machine in the last day.

    Args:
        root: the folder of all cache folders.

    Raises:
        ValueError: as of `keep_seconds`.
    """
    keep = keep_seconds()
    with suppress(FileNotFoundError):
        if abs(time.time() - (root / _CHECKED).stat().st_mtime) < _DAY:
            return
    # A daemon thread: the next process resumes.
    threading.Thread(target=_remove_once, args=(root, keep), name="removal", daemon=True).start()


def _remove_once(root: Path, keep: float) -> None:
    try:
        with unheld(root / _CHECKED) as free:
            if free:
                remove_unused(root, keep)
                os.utime(root / _CHECKED)
    except (OSError, ValueError) as error:
        logger.warning("unused decoded images are removed later: %s", error)


def remove_unused(root: Path, keep: float) -> None:
    """Remove all sets unused for `keep` seconds; an OSError if the cache or the store cannot be read or written."""
    before = time.time() - keep
    for folder in cache_folders(root):
        if used_at(folder) >= before or not remove_folder(folder):
            _remove_sets(folder, before)
    for name in shared_sets():
        store = shared_store(name)
        assert store is not None, "it was listed"
        at = _marked_at(store)
        if at is None:  # the mark is damaged
            mark_used(store)
        elif at < before:
            store.remove_all()
            logger.info("removed the shared shards %s, which were last used %s", name, _date(at))


def mark_used(store: ShardStore) -> None:
    """Mark the shards of a store as used now; an OSError if it cannot be written."""
    # By this machine's clock, which is precise enough for days; not every store tells its own.
    store.write(USED, f"{time.time():.0f}".encode())


def _marked_at(store: ShardStore) -> float | None:
    size = store.sizes().get(USED)
    try:
        return None if size is None else float(store.read(USED, 0, size))
    except (ValueError, FileNotFoundError):
        return None


def _remove_sets(folder: Path, before: float) -> None:
    """Remove the sets of a cache folder last used before a time and not in use."""
    sets: defaultdict[str, list[Path]] = defaultdict(list)
    for file in folder.glob("canvases-*"):
        if match := _SET.match(file.name):
            sets[match[1]].append(file)
    for name, files in sets.items():
        mark = use_mark(folder, name)
        at = max(map(_changed_at, [mark] if mark in files else files))
        if at >= before:
            continue
        with unheld(mark) as free:
            if not free:
                continue
            for file in files:
                if file != mark:
                    file.unlink(missing_ok=True)
            mark.unlink()
        logger.info("removed canvases %s of %s, last used %s", name, folder, _date(at))


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # a partial file that was renamed
        return time.time()


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
