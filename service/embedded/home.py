"""The home folder of `dasl serve`: private, and locked by one process."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(home: Path) -> Iterator[None]:
    """Create the home folder and hold its lock within the block.

    Raises:
        ValueError: it cannot be used, or another process holds it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Private, because it contains the database, and Ray's world-readable logs contain the environment of jobs.
        home.chmod(0o700)
        lock = (home / "serve.lock").open("a+")
    except FileExistsError:
        problem = "is a file, not a folder"
        if home.is_symlink() and not home.exists():
            problem = f"is a link to {home.readlink()}, which does not exist"
        raise ValueError(f"{home} (DASL_HOME) {problem}. Name a folder") from None
    except OSError as error:
        raise ValueError(f"{home} (DASL_HOME) cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise ValueError(
                f"Process {lock.read().strip()} serves {home} already; stop it, or set DASL_HOME "
                "to another folder"
            ) from error
        except OSError as error:
            raise ValueError(f"{home} (DASL_HOME) cannot be locked: {error.strerror}") from error
        lock.truncate(0)
        lock.write(f"{os.getpid()} of {socket.gethostname()}")
        lock.flush()
        yield
