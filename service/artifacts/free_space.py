"""Free space of the local folders that the service writes to."""

import os
from datetime import timedelta
from pathlib import Path

from sqlalchemy import make_url

# Smaller than the smallest checkpoint, so nothing useful can be written.
FULL_BYTES = 32 << 20


def free_bytes(uri: str) -> int | None:
    """Return the free space for this user below a folder; `None` if the URI is not local.

    For a missing folder, use its nearest existing parent.

    Raises:
        OSError: the file system does not answer.
    """
    if (folder := local_folder(uri)) is None:
        return None
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def local_folder(uri: str) -> Path | None:
    """Return the folder of a `file://` URI or the one of a SQLite database; `None` for others."""
    if uri.startswith("file://"):
        return Path(uri.removeprefix("file://"))
    if uri.startswith("sqlite"):
        return Path(str(make_url(uri).database)).parent
    return None


def shortage(what: str, uri: str) -> str | None:
    """Return a message if the disk of a local folder is full; otherwise `None`.

    It has no path, because `/readyz` needs no token.
    """
    free = free_bytes(uri)
    return None if free is None or free >= FULL_BYTES else full(what, free)


def full(what: str, free: int | None = None) -> str:
    """Describe a full disk, with the remedy."""
    space = "" if free is None else f" ({free / 1e6:.0f} MB are free)"
    return f"the disk of {what} is full{space}. Make room there; then jobs continue automatically"


SILENT = timedelta(minutes=5)
"""A store that does not answer for this long counts as unavailable; a hard NFS mount, for example, may hang."""


def silent(since: timedelta) -> str:
    """Describe an artifact store that does not answer."""
    return f"the store of {ARTIFACTS} has not answered for {since.total_seconds():.0f} s"


DATABASE, ARTIFACTS = (
    "the database (DASL_HOME or DASL_DATABASE_URL)",
    "the artifacts (DASL_ARTIFACTS_URI)",
)
