"""Locks between the processes of a machine, released when a process ends for any reason."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

IN_USE = "in-use"
"""File that marks a folder as held by processes."""


@contextmanager
def locked(file: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Context manager that waits for and holds the lock of a file among all processes of the machine.

    Args:
        wait: called repeatedly while another process holds the lock; it should sleep a little.
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


class HeldFile:
    """A file, created with its folder if necessary, held until `close` or the end of the process; else an OSError."""

    def __init__(self, file: Path) -> None:
        while True:
            # Only of this account: images and weights lie there.
            file.parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                # NFS allows a shared lock only on a file open for reading.
                self._use = open(file, "a+", encoding="utf-8")  # noqa: SIM115
            except FileNotFoundError:
                continue  # The folder was just removed.
            fcntl.flock(self._use, fcntl.LOCK_SH)
            if _exists_as(self._use, file):
                break
            self._use.close()  # The file was removed during the wait.

    def close(self) -> None:
        """Allow others to remove the file and the data that it protects."""
        self._use.close()


class HeldFolder(HeldFile):
    """A folder with a held file `IN_USE`, created if necessary; an OSError if it cannot be."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / IN_USE)
        self.path = path


@contextmanager
def unheld(file: Path) -> Iterator[bool]:
    """Context manager that yields whether no process holds a file, and prevents new holders.

    To remove the data that the file protects, remove the file last.
    """
    with ExitStack() as stack:
        try:
            use = stack.enter_context(open(file, "a", encoding="utf-8"))
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = _exists_as(use, file)
        except (BlockingIOError, FileNotFoundError):
            free = False
        yield free


def _exists_as(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
