"""The errors of the SDK."""

import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.client.config import Connection
from service.client.errors import (
    ApiError,
    ConnectionFailed,
    DaslError,
    DatasetFailed,
    JobFailed,
    StaleAttempt,
    StoreUnreachable,
    TaskFailed,
)
from service.client.sync.models import Dataset, Job
from service.client.sync.transport import Transport
from service.wire.datasets import DatasetView
from service.wire.jobs import JobView
from tests.support.answers import answer_of

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
    **dict.fromkeys((TaskFailed, *TaskFailed.__subclasses__()), (JOB,)),
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


def test_errors_of_records_with_a_client_can_be_pickled() -> None:
    job = Job.model_validate(answer_of(JobView, id="job_1", status="failed"))
    dataset = Dataset.model_validate(answer_of(DatasetView, id="ds_1", state="failed"))
    for record, name in ((job, "_jobs"), (dataset, "_datasets")):
        setattr(record, name, threading.RLock())  # as a client has it
        error = JobFailed(job) if record is job else DatasetFailed(dataset)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        copy = pickle.loads(pickle.dumps(record))
        assert copy.model_dump() == record.model_dump()
        with pytest.raises(RuntimeError, match="does not come from a client"):
            copy.wait()


def test_errors_can_be_built_and_pickled_with_keywords() -> None:
    error = ConnectionFailed(url="http://127.0.0.1:8000", reason="connection refused")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "`dasl serve` prints a token."),
        ("https://dasl.example.org", "Ask your administrator for a new token."),
    ],
)
def test_refused_token_says_where_another_one_comes_from(url: str, expected: str) -> None:
    transport = Transport(Connection(url, "dasl_revoked"), patience=0)
    with pytest.raises(ApiError) as caught:
        transport._raise_for(httpx.Response(401, json={"detail": "The token was revoked"}))
    transport.close()
    refused = caught.value
    first, second = str(refused).splitlines()
    assert first == "The token was revoked"
    assert second.endswith(expected)
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)
