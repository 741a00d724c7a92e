"""Register and delete data sets."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from sqlalchemy.orm import Session

from dasl_core.spec.locations import CONTAINS_PRIVATE, OUTSIDE
from dasl_core.spec.source import (
    COMPRESSED,
    COMPRESSED_ENDINGS,
    SOURCE_ENDINGS,
    SourceOptions,
    is_pattern,
    remote_scheme,
    unread_options,
)
from dasl_core.storage import LocalStorage
from dasl_core.vocabulary import is_image_name
from service import ids
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found, quota_exceeded, spec_problem
from service.datasets import repository
from service.datasets.ingests import repository as ingests
from service.datasets.schemas import DatasetRequest
from service.db.locks import lock_quota, lock_tenant
from service.db.models import Dataset, Token
from service.db.rows import add_if_new, owned
from service.settings import Settings
from service.states import DatasetState
from service.wire.datasets import remedy

# Number of files that are looked at to find an image in a folder.
_LOOKED_AT = 1000
_EXPECTED = f"a folder of images, or a file that ends in {', '.join(SOURCE_ENDINGS)}"


def check_location(uri: str, tenant: str, settings: Settings) -> None:
    """Check that a tenant may read a location, and that it exists if it is on this machine.

    Raises:
        Problem: 422 for the field `uri`.
    """
    readable = settings.readable_folders(tenant)
    if remote_scheme(uri) is not None:
        if not readable.allow_uri(uri):
            raise field_problem("uri", "is outside of what may be read (DASL_DATASET_URIS)", uri)
        return
    # Check it first: the answer must not disclose what exists in other folders.
    if not readable.allow(uri):
        raise field_problem("uri", OUTSIDE, uri, readable.expected("a folder"))
    if not readable.allow_tree(uri):
        raise field_problem("uri", CONTAINS_PRIVATE, uri, "a folder of images only")
    if not settings.check_paths:
        return
    path = Path(uri)
    if is_pattern(path.name):
        path = path.parent  # the folder of the files that match the pattern
    try:
        exists = path.exists()
        is_folder = path.is_dir()
    except OSError as error:
        raise field_problem("uri", f"cannot be read: {error.strerror}", uri) from error
    if not exists:
        raise field_problem("uri", "does not exist on the server", uri, _EXPECTED)
    if not is_folder and uri.lower().endswith(COMPRESSED_ENDINGS):
        raise field_problem("uri", COMPRESSED, uri)
    if not is_folder and not uri.lower().endswith(SOURCE_ENDINGS):
        raise field_problem("uri", "is a file that holds no images", uri, _EXPECTED)


def check_columns(uri: str, source: SourceOptions, settings: Settings) -> None:
    """Check that no columns are named for a folder of images on this machine, whose location is checked.

    Raises:
        Problem: 422 for a field of `source`.
    """
    problems = [
        problem
        for problem in unread_options("folder", uri, source)
        if problem.field.endswith("_column")
    ]
    # Looked for only then, as a folder may be large.
    if problems and settings.check_paths and remote_scheme(uri) is None and _holds_images(uri):
        raise spec_problem([replace(each, field=f"source.{each.field}") for each in problems])


def _holds_images(folder: str) -> bool:
    """Whether an image is among the first files of a folder, which is then read as a folder of images."""
    if not os.path.isdir(folder):
        return False
    files = islice(LocalStorage(os.path.realpath(folder)).files(), _LOOKED_AT)
    return any(file.reason is None and is_image_name(file.path) for file in files)


def register(
    session: Session,
    caller: Caller,
    request: DatasetRequest,
    prepare: Callable[[Dataset], None] = lambda _: None,
) -> Dataset:
    """Add a data set, pending until it is ingested.

    Args:
        prepare: called with the data set before it is stored.

    Raises:
        Problem: 404, the tenant was deleted; 409, it already has a data set of this name; 429, the token's quota is exhausted.
    """
    tenant = caller.tenant
    if not lock_tenant(session, tenant):
        raise not_found("tenant", tenant)
    limit = lock_quota(session, Token.max_pending_datasets, caller.token_id, caller.user_id)
    now = datetime.now(UTC)
    dataset = Dataset(
        id=ids.new_id("ds"),
        tenant=tenant,
        name=request.name,
        uri=request.uri or "",
        source=request.source.model_dump(mode="json", exclude_defaults=True) or None,
        state=DatasetState.PENDING,
        token_id=caller.token_id,
        created_at=now,
        ingest_requested_at=now,
    )
    prepare(dataset)
    while not add_if_new(session, dataset):
        existing = repository.find(session, tenant, request.name)
        if existing is None:
            continue  # deleted since the query
        where = existing.uri if existing.upload_file is None else "an upload"
        detail = f"The data set {request.name!r} exists: {existing.id}, {where}"
        if existing.state == DatasetState.FAILED:
            reason = (existing.error or {}).get("message", "see its report")
            advice = remedy(
                existing.id, existing.source, is_upload=existing.upload_file is not None
            )
            detail += f". It could not be ingested: {reason}. {advice}"
        elif existing.uri == request.uri:
            detail += f". To read its new images, run dasl datasets refresh {existing.id}"
        else:
            detail += f". Choose another name, or remove it (dasl datasets rm {existing.id})"
        raise Problem(
            409,
            "name-taken",
            detail,
            extra={"dataset": {"id": existing.id, "uri": existing.uri}},
        )
    # Report a taken name first, because waiting would not help.
    check_quota(session, caller, limit, added=1)
    return dataset


def check_quota(session: Session, caller: Caller, limit: int | None, *, added: int = 0) -> None:
    """Check that the token allows one more pending data set.

    Args:
        limit: from `lock_quota` in the same transaction.
        added: number of pending data sets that this transaction has added.

    Raises:
        Problem: 429.
    """
    if limit is None:
        return
    used = ingests.count_pending(session, caller.token_id, caller.user_id) - added
    if used < limit:
        return
    whose = "it" if caller.user_id is None else "tokens of its user"
    detail = (
        f"max_pending_datasets of this token is {limit}, and {used} data sets that {whose} registered or refreshed wait "
        "for their ingest, are being read or uploaded; repeat the request when one is ready"
    )
    raise quota_exceeded("max_pending_datasets", limit, used, detail)


def get(session: Session, tenant: str, dataset_id: str) -> Dataset:
    """Return a tenant's data set.

    Raises:
        Problem: 404.
    """
    return references.get(session, owned(Dataset, tenant), "ds", dataset_id, "data set")


def delete(session: Session, dataset: Dataset) -> None:
    """Delete a data set but not its folder.

    Raises:
        Problem: 404, it was deleted concurrently; 409, an unfinished job uses it.
    """
    if repository.lock(session, dataset.id) is None:
        raise not_found("data set", dataset.id)
    jobs = repository.unfinished_jobs(session, dataset.id)
    if jobs:
        raise Problem(
            409,
            "dataset-in-use",
            f"Unfinished jobs use {dataset.name!r}: {', '.join(jobs)}. Cancel them, or wait for their end",
            extra={"jobs": list(jobs)},
        )
    dataset.deleted_at = datetime.now(UTC)
