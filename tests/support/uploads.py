"""Clients' and the dispatcher's part of uploads."""

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from service.artifacts.storage import Storage
from service.db.session import Database
from service.dispatcher.context import Clock, DispatcherContext, Entrypoints, utc_now
from service.dispatcher.ray_executor import RayExecutor
from service.dispatcher.uploads import Uploads
from service.settings import Settings
from tests.support.api_under_test import Api


def begin(api: Api, size: int, name: str = "birds", **upload: Any) -> Any:
    """Create a data set whose file will be uploaded."""
    body = {"name": name, "upload": {"filename": "birds.tar", "size": size, **upload}}
    return api.client.post("/v1/datasets", json=body)


def put(
    api: Api, dataset_id: str, content: bytes, start: int, stop: int, total: int | None = None
) -> Any:
    """Send a part of a file."""
    part, size = content[start:stop], len(content) if total is None else total
    digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
    headers = {
        "Content-Range": f"bytes {start}-{stop - 1}/{size}",
        "Content-Digest": f"sha-256=:{digest}:",
    }
    return api.client.put(f"/v1/datasets/{dataset_id}/content", content=part, headers=headers)


def dispatcher_of_uploads(api: Api, clock: Clock = utc_now) -> Uploads:
    """Return the dispatcher's part for an API under test."""
    return dispatcher_of(api.settings, api.database, clock)


def dispatcher_of(settings: Settings, database: Database, clock: Clock = utc_now) -> Uploads:
    """Return the dispatcher's part, which makes no request to Ray."""
    with dispatcher_context(settings, database, clock) as context:
        return Uploads(context)


@contextmanager
def dispatcher_context(
    settings: Settings, database: Database, clock: Clock
) -> Iterator[DispatcherContext]:
    """Yield what the parts of a dispatcher share that holds the lease, and whose Ray is away."""
    ray = RayExecutor("http://127.0.0.1:9", None)
    storage = Storage(settings.artifacts_uri)
    context = DispatcherContext(settings, database, storage, ray, clock, "me", Entrypoints())
    assert context.take_lease()
    yield context
    ray.close()
