"""Drivers whose API is absent for a while, or refuses to start them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import ApiError
from service.client.worker import WorkerClient
from service.protocol import UNDELIVERED_EXIT_CODE
from tests.workers.test_reporter import DEADLINE, STALE, Home
from workers import driver as training_driver
from workers import ingest
from workers.rank import report_end
from workers.report_queue import ReportsUndelivered


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    home.up()  # to get its port
    yield home
    home.down()


@pytest.mark.parametrize("driver", ["driver", "ingest"])
def test_driver_waits_for_unreachable_api(
    home: Home, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    home.down()
    # A short default patience, so that only the driver's own patience can span the outage.
    defaults = WorkerClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience", 0.05)
    home.refusals["start"] = STALE
    monkeypatch.setenv("DASL_API_URL", home.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", "token")
    words = {
        "driver": ["driver", "--run", "job_1-1", "--job", "job_1", "--attempt", "1"],
        "ingest": ["ingest", "--run", "ds_1-1", "--dataset", "ds_1"],
    }
    monkeypatch.setattr("sys.argv", words[driver])
    main = training_driver.main if driver == "driver" else ingest.main
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main()), daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    home.up()
    thread.join(DEADLINE)
    assert codes == [0], "a superseded driver exits without an error"


def test_driver_reports_that_the_server_cannot_read_the_spec(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = "This server cannot read the job's spec: it is not a mapping"
    home.refusals["start"] = (409, {"type": "spec-unreadable", "detail": detail})
    home.answers["finish"] = {}
    monkeypatch.setenv("DASL_API_URL", home.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", "token")
    monkeypatch.setattr("sys.argv", ["driver", "--run", "r", "--job", "job_1", "--attempt", "1"])
    assert training_driver.main() == 1
    [(action, report)] = home.reports
    assert action == "finish"
    assert report["error"]["message"] == detail
    assert report["outcome"] == "failed"
    # The second such failure in a row fails the job.
    assert (report["retryable"], report["repeatable"]) == (True, True)


def test_driver_leaves_an_end_that_was_not_reported_to_the_dispatcher(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of a failure, delivered once the API is back, would use up a restart."""
    error = ReportsUndelivered("reports did not arrive within 600 s")
    monkeypatch.setattr(training_driver, "start_and_run", lambda client, config: error)
    monkeypatch.setenv("DASL_API_URL", home.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", "token")
    monkeypatch.setattr("sys.argv", ["driver", "--run", "r", "--job", "job_1", "--attempt", "1"])
    assert training_driver.main() == UNDELIVERED_EXIT_CODE
    assert home.reports == []


PROBLEM, OF_PROXY = {"type": "problem", "detail": "no"}, None


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (503, PROBLEM, ReportsUndelivered),
        (404, OF_PROXY, ReportsUndelivered),
        (404, PROBLEM, ApiError),
        (422, PROBLEM, ApiError),
    ],
)
def test_end_that_a_failing_api_does_not_take_is_no_failure_of_the_training(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    answer: dict[str, Any] | None,
    error: type[Exception],
) -> None:
    home.refusals["finish"] = (status, answer)
    monkeypatch.setattr("workers.settings.PATIENCE_SECONDS", 0.0)
    client = WorkerClient(home.url, "token", "r")
    try:
        with pytest.raises(error):
            report_end(client, "succeeded")
    finally:
        client.close()


@pytest.mark.parametrize("answer", ["none", "busy", "of a proxy"])
@pytest.mark.parametrize("action", ["start", "finish"])
def test_ingest_that_cannot_be_reported_is_left_to_the_dispatcher(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str, answer: str
) -> None:
    """At its start, or after its images were read."""
    monkeypatch.setattr("workers.task_process.PATIENCE_SECONDS", 0.0)
    home.answers["start"] = {
        "uri": f"file://{tmp_path}/none",
        "artifacts_uri": f"file://{tmp_path}/store",
        "dataset_roots": [str(tmp_path)],
    }

    def goes_down(text: str) -> str:
        home.down()
        return text

    if answer == "busy":
        home.refusals[action] = (503, PROBLEM)
    elif answer == "of a proxy":
        home.refusals[action] = (404, OF_PROXY)
    elif action == "start":
        home.down()
    else:
        # The folder is missing, which is to be reported.
        monkeypatch.setattr(ingest, "storable", goes_down)
    monkeypatch.setenv("DASL_API_URL", home.url)
    monkeypatch.setenv("DASL_WORKER_TOKEN", "token")
    monkeypatch.setattr("sys.argv", ["ingest", "--run", "ds_1-1", "--dataset", "ds_1"])
    assert ingest.main() == UNDELIVERED_EXIT_CODE
    assert [what for what, _ in home.reports] == (["start"] if action == "finish" else [])
