"""The demo's data set: images that come with DASL. They are stored like an upload, so workers on any machine find them."""

import gzip
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy.orm import Session

from dasl_core.spec.source import SourceOptions
from service.api.auth import Caller
from service.api.problems import Problem
from service.api.transaction import Context
from service.datasets import repository as datasets
from service.datasets.schemas import DatasetRequest, UploadRequest
from service.datasets.service import register
from service.datasets.uploads import service as uploads
from service.datasets.uploads.service import Part
from service.db.models import Dataset
from service.states import DatasetState

NAME = "fonts-demo"
_FOLDER = Path(__file__).parent
_FINGERPRINT = "images of the demo"
# The folder in the archive with one folder per class. The other one is for choosing a recipe (`examples/fonts.py`).
_SOURCE = SourceOptions(split="fonts")


def demo_spec() -> dict[str, Any]:
    """Return the spec of the demo's job."""
    spec: dict[str, Any] = yaml.safe_load((_FOLDER / "demo.yaml").read_text(encoding="utf-8"))
    return spec | {"dataset": NAME}


def add_images(context: Context, caller: Caller, on_change: Callable[[Session], None]) -> Dataset:
    """Register the images and store their file. Idempotent: a repeated call completes an earlier one.

    Args:
        on_change: called in each transaction that changes something.

    Raises:
        Problem: 409, the tenant has another data set of this name, or images cannot be uploaded; 507, the disk is
            full; or a problem of `register`.
    """
    dataset = _find(context, caller.tenant)
    if dataset is not None and dataset.state != DatasetState.UPLOADING:
        return dataset
    content = gzip.decompress((_FOLDER / "fonts.tar.gz").read_bytes())
    if dataset is None:
        dataset = _register(context, caller, content, on_change)
    return _store(context, dataset, content, on_change)


def _find(context: Context, tenant: str) -> Dataset | None:
    with context.database.read() as session:
        dataset = datasets.find(session, tenant, NAME)
    if dataset is None or (dataset.upload_file or {}).get("fingerprint") == _FINGERPRINT:
        return dataset
    detail = (
        f"The data set {NAME!r} exists and does not have the images of the demo: {dataset.id}, {dataset.uri}. "
        f"Remove it to run the demo (dasl datasets rm {dataset.id})"
    )
    raise Problem(
        409, "name-taken", detail, extra={"dataset": {"id": dataset.id, "uri": dataset.uri}}
    )


def _register(
    context: Context, caller: Caller, content: bytes, on_change: Callable[[Session], None]
) -> Dataset:
    upload = UploadRequest(
        filename="fonts.tar",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        fingerprint=_FINGERPRINT,
    )
    request = DatasetRequest(name=NAME, upload=upload, source=_SOURCE)
    free = uploads.measure_room(upload, context.settings)
    try:
        with context.database.write() as session:
            if free is not None:
                uploads.check_room(session, upload, free)
            begin = partial(uploads.begin, upload=upload, storage=context.storage)
            dataset = register(session, caller, request, begin)
            on_change(session)
            return dataset
    except Problem as problem:
        if problem.type != "name-taken":
            raise
        # A concurrent request has registered them.
        existing = _find(context, caller.tenant)
        if existing is None:
            raise
        return existing


def _store(
    context: Context, dataset: Dataset, content: bytes, on_change: Callable[[Session], None]
) -> Dataset:
    whole = Part(0, len(content), len(content))
    store = uploads.store_chunk(
        context.database, context.storage, dataset.tenant, dataset.id, whole, None, on_change
    )
    try:
        for block in (None, content, b""):
            store.send(block)
    except StopIteration as end:
        stored: Dataset = end.value
        return stored
    except Problem as problem:
        if problem.type != "upload-busy":
            raise
        return dataset  # A concurrent request stores them.
    raise AssertionError("the empty block ends the chunk")
