"""The errors of the SDK."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from service.client.errors import (
    ApiError,
    ConnectionFailed,
    DaslError,
    DatasetFailed,
    JobFailed,
    PreparationFailed,
    PreviewFailed,
    StaleAttempt,
    StoreUnreachable,
)

PROBLEM = {
    "type": "about:blank",
    "detail": "2 fields are wrong",
    "errors": [{"field": "train.epochs", "message": "must be positive", "given": -1}],
}
JOB = SimpleNamespace(id="job_1", status="failed", error=SimpleNamespace(message="no memory"))
ARGUMENTS: dict[type[DaslError], tuple[Any, ...]] = {
    ApiError: (422, PROBLEM),
    StaleAttempt: (409, {"detail": "replaced"}),
    ConnectionFailed: ("http://127.0.0.1:8000", "connection refused"),
    StoreUnreachable: ("http://127.0.0.1:8333", "connection refused"),
    JobFailed: (JOB,),
    DatasetFailed: (SimpleNamespace(name="emoji", error_message="no images"),),
    PreparationFailed: (SimpleNamespace(id="prep_1", error=SimpleNamespace(message="no room")),),
    PreviewFailed: (SimpleNamespace(id="prev_1", error=SimpleNamespace(message="no images")),),
}


def kinds(base: type[DaslError]) -> Iterator[type[DaslError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds(DaslError)), key=str))
def test_errors_can_be_pickled(kind: type[DaslError]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("one sentence",)))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
