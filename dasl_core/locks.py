"""Locks between the processes of a machine, which end with their process, however it ends."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

IN_USE = "in-use"
"""File that marks a folder which processes hold."""


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


class HeldFolder:
    """A folder, created if necessary, that is not `unused` until `close` or the end of the process.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            path.mkdir(parents=True, exist_ok=True)
            try:
                # NFS gives a shared lock only to a file that is open for reading.
                self._use = open(path / IN_USE, "a+", encoding="utf-8")  # noqa: SIM115
            except FileNotFoundError:
                continue  # The folder was removed in the meantime.
            fcntl.flock(self._use, fcntl.LOCK_SH)
            if _exists_as(self._use, path / IN_USE):
                break
            self._use.close()  # The folder was removed during the wait.

    def close(self) -> None:
        """Allow others to remove the folder."""
        self._use.close()


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Check whether no process holds a folder. If so, none can begin to within the block.

    To remove the folder, remove `IN_USE` last.
    """
    with ExitStack() as stack:
        try:
            use = stack.enter_context(open(folder / IN_USE, "a", encoding="utf-8"))
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = _exists_as(use, folder / IN_USE)
        except (BlockingIOError, FileNotFoundError):
            free = False
        yield free


def _exists_as(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
