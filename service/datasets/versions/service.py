"""Refresh data sets, and find the version for a job."""

import re

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem
from dasl_core.spec.errors import closest
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found
from service.artifacts.storage import Storage
from service.datasets import repository as datasets
from service.datasets.ingests import repository as ingests
from service.datasets.service import check_quota
from service.datasets.versions import repository
from service.db.locks import lock_quota
from service.db.models import Dataset, DatasetVersion, Token
from service.protocol import CONTACT_SHEET
from service.states import DatasetState

_VERSIONED = re.compile(r"(?P<name>.+)@(?P<number>[1-9][0-9]{0,8})")
"""A data set's id or name, and the number of one of its versions."""
_REGISTER = "id or name of a data set; register one with: dasl datasets add FOLDER"


def refresh(session: Session, caller: Caller, dataset: Dataset) -> Dataset:
    """Request an ingest that makes the next version of a data set. Idempotent while one waits or runs.

    A first ingest that failed is repeated.

    Raises:
        Problem: 404, it was deleted concurrently; 409, its images are not uploaded yet; 429, the token's quota is
            exhausted.
    """
    limit = lock_quota(session, Token.max_pending_datasets, caller.token_id, caller.user_id)
    if datasets.lock(session, dataset.id) is None:
        raise not_found("data set", dataset.id)
    waiting = (DatasetState.PENDING, DatasetState.INGESTING)
    if dataset.state in waiting or dataset.refresh_state in waiting:
        return dataset
    if dataset.upload_file is not None and dataset.upload_received == 0:
        detail = (
            "The uploaded file was damaged and is removed. Delete the data set and upload it again"
        )
        raise Problem(409, "dataset-not-ready", detail)
    if dataset.state not in (DatasetState.READY, DatasetState.FAILED):
        detail = f"The data set is {dataset.state}; it can be refreshed when it is ready"
        raise Problem(409, "dataset-not-ready", detail)
    check_quota(session, caller, limit)
    ingests.request_ingest(session, dataset, caller.token_id)
    return dataset


def find(
    session: Session, tenant: str, name: str, *, lock: bool = False
) -> tuple[Dataset | None, int | None]:
    """Return the data set with a name or id, and the version's number if `NAME@NUMBER` names one.

    Args:
        lock: see `find_ready`.
    """
    dataset = datasets.find(session, tenant, name, lock=lock)
    parts = _VERSIONED.fullmatch(name) if dataset is None else None
    if parts is None:
        return dataset, None
    return datasets.find(session, tenant, parts["name"], lock=lock), int(parts["number"])


def find_ready(
    session: Session, tenant: str, name: str, field: str, *, lock: bool
) -> tuple[Dataset, DatasetVersion]:
    """Return the data set and version that a field of a spec names: the newest, or `NAME@NUMBER`.

    Args:
        lock: whether to lock the data set against deletion until this writing transaction ends.

    Raises:
        Problem: 422 for the field; 409 while the data set is still being ingested.
    """
    dataset, number = find(session, tenant, name, lock=lock)
    if dataset is None:
        message = "is not registered" + closest(name, datasets.names(session, tenant))
        raise field_problem(field, message, name, _REGISTER)
    _check_ready(dataset, name, field)
    row = repository.get(session, dataset.id, dataset.version if number is None else number)
    newest = f"a version from 1 to {dataset.version}; without @NUMBER, the newest"
    if row is None:
        raise field_problem(field, f"has no version {number}", name, newest)
    if row.removed_at is not None:
        message = f"names version {number}, which was removed because no job needed it"
        raise field_problem(field, message, name, newest)
    return dataset, row


def _check_ready(dataset: Dataset, name: str, field: str) -> None:
    if dataset.state == DatasetState.FAILED:
        reason = (dataset.error or {}).get("message", "see its report")
        raise field_problem(
            field, f"could not be ingested: {reason}", name, "a data set that is ready"
        )
    if dataset.state != DatasetState.READY:
        problem = FieldProblem(
            field, f"is {dataset.state}; submit again when it is ready", name, "a ready data set"
        )
        detail = (
            f"{field}: the data set {dataset.name!r} is {dataset.state}; wait until it is ready"
        )
        raise Problem(
            409, "dataset-not-ready", detail, errors=[problem], headers={"Retry-After": "2"}
        )


def removable_uri(version: DatasetVersion, storage: Storage) -> str:
    """Return the URI that can be removed with a version: its folder, or its index if it has no separate folder."""
    assert version.index_uri is not None, "its files are not removed yet"
    folder = version.index_uri.rpartition("/")[0]
    is_own = folder.startswith(f"{storage.dataset_uri(version.dataset_id)}/")
    return folder if is_own else version.index_uri


def contact_sheet_uri(dataset: Dataset) -> str:
    """Return the URI of the newest version's contact sheet, which may not exist.

    Raises:
        Problem: 404, the data set is not ready.
    """
    if dataset.index_uri is None:
        raise Problem(404, "no-contact-sheet", f"The data set is {dataset.state}")
    return f"{dataset.index_uri.rpartition('/')[0]}/{CONTACT_SHEET}"
