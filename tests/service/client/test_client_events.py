"""Live events in the Python client: their wire format, and those of all jobs from a real server."""

from pathlib import Path

import pytest

from service import lifecycle
from service.client import Client
from service.client.models import ServerSentEvent
from service.client.sync.sse import parse
from tests.support.api_server import Service

STREAM = (
    b": hello\r\n\r\n"
    b'id: 1\nevent: status\ndata: {"a":\ndata: 1}\n\n'
    b"data: \xc3\xa4\xe2\x80\xa8b\r\n\r\n"
    b"id: 3\rdata:tight\r\r"
    b"event: lost\n\n"
    b"data:\n\n"
    b": still here\n\n"
    b"id: 9\ndata: cut off"
)
EXPECTED = [
    ServerSentEvent("1", "status", '{"a":\n1}'),
    ServerSentEvent("1", "message", "ä\u2028b"),
    ServerSentEvent("3", "message", "tight"),
    ServerSentEvent("3", "message", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_parse_does_not_depend_on_chunk_size(size: int) -> None:
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert list(parse(chunks)) == EXPECTED


def test_client_lists_and_streams_the_events_of_all_jobs(service: Service, tmp_path: Path) -> None:
    with Client(service.url, service.token) as client:
        service.ingest(client.datasets.add(str(tmp_path), "images"))
        jobs = [client.jobs.submit({"dataset": "images"}).id for _ in range(3)]
        listed = list(client.events(page_size=2))
        assert [event.job_id for event in listed] == jobs[::-1]
        assert [event.level for event in listed] == ["info"] * 3
        stream = client.stream_events(after=listed[-1].id)
        assert [next(stream).job_id for _ in range(2)] == jobs[1:]
        with service.database.write() as session:
            lifecycle.append_event(session, jobs[0], "nan", "loss is NaN", {"metric": "loss"})
        event = next(stream)
        assert (event.job_id, event.type, event.level) == (jobs[0], "nan", "warning")
        assert [each.id for each in client.events(level=["warning", "error"])] == [event.id]
        assert [each.seq for each in client.events(job=jobs[0], type="status")] == [1]
