"""Events of all jobs in the Python client, from a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service import lifecycle
from service.client import Client
from tests.support.api_server import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


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
