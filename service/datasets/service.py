"""Register and delete data sets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.orm import Session

from dasl_core.spec.locations import OUTSIDE, is_allowed
from service import ids
from service.api.problems import Problem, field_problem, not_found
from service.datasets import repository
from service.datasets.schemas import DatasetRequest
from service.db.models import Dataset
from service.settings import Settings


def check_folder(uri: str, settings: Settings) -> None:
    """Refuse a folder that may not be read, or is not there, before anything is stored.

    Raises:
        Problem: 422, naming `uri`.
    """
    roots = settings.dataset_roots
    # First: whether something exists outside of the roots is nobody's business.
    if not is_allowed(uri, roots, follow=settings.check_paths):
        expected = f"a folder in {' or '.join(map(str, roots))}"
        raise field_problem("uri", OUTSIDE, uri, expected)
    if not settings.check_paths:
        return
    path = Path(uri)
    try:
        exists = path.exists()
        is_folder = path.is_dir()
    except OSError as error:
        raise field_problem("uri", f"cannot be looked at: {error.strerror}", uri) from error
    if not exists:
        raise field_problem("uri", "does not exist on the server", uri, "a folder of images")
    if not is_folder:
        raise field_problem("uri", "is not a folder", uri, "a folder of images")


def register(session: Session, tenant: str, request: DatasetRequest) -> Dataset:
    """A new data set, pending until it is ingested.

    Raises:
        Problem: 409, the tenant has one of this name.
    """
    dataset = Dataset(
        id=ids.new_id("ds"),
        tenant=tenant,
        name=request.name,
        uri=request.uri,
        state=repository.PENDING,
        attempt=0,
        created_at=datetime.now(UTC),
    )
    while not repository.add(session, dataset):
        existing = repository.find(session, tenant, request.name)
        if existing is None:
            continue  # It was removed meanwhile.
        detail = f"The data set {request.name!r} exists: {existing.id}, {existing.uri}"
        if existing.state == repository.FAILED:
            why = (existing.error or {}).get("message", "see its report")
            detail += (
                f". It could not be ingested: {why}. Once it is removed, the name is free "
                f"(dasl datasets rm {existing.id})"
            )
        raise Problem(
            409,
            "name-taken",
            detail,
            extra={"dataset": {"id": existing.id, "uri": existing.uri}},
        )
    return dataset


def get(session: Session, tenant: str, dataset_id: str) -> Dataset:
    """A tenant's data set.

    Raises:
        Problem: 404.
    """
    dataset = repository.get(session, tenant, dataset_id) if ids.is_id("ds", dataset_id) else None
    if dataset is None:
        raise not_found("data set", dataset_id)
    return dataset


def delete(session: Session, dataset: Dataset) -> None:
    """Delete a data set; the folder that it names is not touched.

    Raises:
        Problem: 404, it was deleted just now; 409, a job that has not ended uses it.
    """
    if repository.lock(session, dataset.id) is None:
        raise not_found("data set", dataset.id)
    users = repository.unfinished_jobs(session, dataset.id)
    if users:
        raise Problem(
            409,
            "dataset-in-use",
            f"Jobs that have not ended use {dataset.name!r}: {', '.join(users)}",
            extra={"jobs": list(users)},
        )
    dataset.deleted_at = datetime.now(UTC)
