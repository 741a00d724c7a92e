"""Folders of the artifact store that no row of the database names."""

from collections.abc import Iterator

from service.artifacts.storage import Storage
from service.db.models import Dataset, Job, ModelRun, Preview
from service.db.session import Database
from service.storage import repository

_KINDS: dict[str, type[Job] | type[Dataset] | type[Preview] | type[ModelRun]] = {
    "jobs": Job,
    "datasets": Dataset,
    "previews": Preview,
    "model-runs": ModelRun,
}
_AT_ONCE = 500


def find_orphans(database: Database, storage: Storage) -> Iterator[str]:
    """Yield the URIs of folders that no row names, such as those of what is newer than a restored backup.

    The folder of a row that is added meanwhile is newer than the list of folders, and so not in it.
    """
    for kind, row in _KINDS.items():
        folders = {uri.rpartition("/")[2]: uri for uri in storage.folders(f"{storage.root}/{kind}")}
        names = sorted(folders)
        for begin in range(0, len(names), _AT_ONCE):
            ids = names[begin : begin + _AT_ONCE]
            with database.read() as session:
                known = repository.known_ids(session, row, ids)
            yield from (folders[id] for id in ids if id not in known)
