"""The mark of a local artifact store: an empty folder in its place, as after an unmount, must not pass for the store."""

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artifacts.free_space import local_folder
from service.artifacts.storage import Storage
from service.db.models import Artifact, Checkpoint, Dataset, DatasetVersion
from service.db.session import Database

MARK = ".dasl-store"
# No path, because /readyz needs no token.
LOST = (
    f"DASL_ARTIFACTS_URI: the folder has no file {MARK}, so it is not the one whose files the database names. "
    "Mount it, or move it back; if it is the right one, create that file in it"
)
URIS = (Checkpoint.uri, Artifact.uri, Dataset.index_uri, DatasetVersion.index_uri)


def is_used(session: Session) -> bool:
    """Whether the database names checkpoints, artifacts or indexes."""
    queries = (select(uri).where(uri.is_not(None)).limit(1) for uri in URIS)
    return any(session.scalar(query) is not None for query in queries)


def is_missing(root: str) -> bool:
    """Whether a local store has no mark; other stores need none."""
    folder = local_folder(root)
    return folder is not None and not (folder / MARK).exists()


def check_usable(database: Database, storage: Storage) -> None:
    """Check that a store is the database's and can be written; mark a local one while the database names no file.

    Raises:
        OSError, ValueError: it has no mark, or cannot be written.
    """
    if missing := is_missing(storage.root):
        with database.read() as session:
            if is_used(session):
                raise ValueError(LOST)
    storage.check_writable()
    folder = local_folder(storage.root)
    if missing and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()


def other_root(database: Database, root: str) -> str | None:
    """Return the root of files that the database names and that are not below `root`; `None` if there are none."""
    with database.read() as session:
        for uri in URIS:
            is_elsewhere = ~uri.startswith(f"{root}/", autoescape=True)
            if found := session.scalar(select(uri).where(is_elsewhere).limit(1)):
                return re.split(r"/(?:jobs/job|datasets/ds)_", found)[0]
    return None
