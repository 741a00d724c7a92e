"""The home folder of `dasl serve`: private, on a disk of this machine, and held by one process."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
# Of file systems whose files other machines write, too.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.(sshfs|glusterfs|ceph\w*|s3fs|rclone)"
)


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


def network_file_system(folder: Path) -> str | None:
    """Return why SQLite must not be in a folder, and the remedy; None if the folder is on this machine.

    See "Dangers of network filesystems" in SQLite's documentation of WAL.
    """
    kind = _file_system(folder)
    if kind is None or not _NETWORK.fullmatch(kind):
        return None
    return (
        f"is on a network file system ({kind}), where locks may not hold and SQLite loses data. Set it to a folder on a "
        "disk of this machine; images and DASL_ARTIFACTS_URI may be there"
    )


def _file_system(folder: Path) -> str | None:
    """Return the kind of the file system of a folder, such as "ext4"; None where the system does not say."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found: list[tuple[int, str]] = []
    for line in lines:
        about, _, source = line.partition(" - ")
        octal = r"\\([0-7]{3})"  # blanks, tabs, line breaks and backslashes
        place = re.sub(octal, lambda code: chr(int(code[1], 8)), about.split(" ")[4])
        if folder.resolve().is_relative_to(place):
            found.append((len(place), source.split(" ")[0]))
    # Of two mounts at one place, the later one is seen.
    return max(enumerate(found), key=lambda each: (each[1][0], each[0]))[1][1] if found else None
