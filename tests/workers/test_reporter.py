"""Reports to the API over real HTTP: in order, through outages, and complete at the end of a run."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dasl_core.train.reporter import progress_line
from service.client import ApiError, StaleAttempt
from service.client.worker import WorkerClient
from tests.support.polling import wait_for
from tests.support.scripted_server import Answer, Request, ScriptedServer, answer_json
from workers import report_queue
from workers import reporter as reporter_module
from workers.reporter import ApiReporter

DEADLINE = 10.0
HEARTBEAT = 0.02
STALE = (409, {"type": "https://dasl.dev/problems/stale-attempt", "detail": "replaced"})
REFUSED = (422, {"detail": "not like this"})
PROGRESS = {
    "step": 3,
    "total_steps": 8,
    "epoch": 0.75,
    "epochs": 2,
    "loss": 4.25,
    "images_per_second": 812.0,
    "eta_seconds": 2.0,
    "knn": None,
}
ANSWERS = {"heartbeat": {"desired": "run"}, "checkpoints": {"id": "ckpt_1"}}


class Home:
    """An API that a test can take down, with scripted refusals."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.refusals: dict[str, tuple[int, dict[str, Any] | None]] = {}
        self.answers: dict[str, dict[str, Any]] = dict(ANSWERS)
        self.changed = threading.Condition()
        self.port, self.is_up = 0, False

    @property
    def reports(self) -> list[tuple[str, dict[str, Any]]]:
        """Return all accepted requests except heartbeats."""
        with self.changed:
            return [request for request in self.requests if request[0] != "heartbeat"]

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=DEADLINE)

    def up(self) -> None:
        """Answer, after an outage at the same address."""
        self.server = ScriptedServer(self._answer, self.port)
        self.is_up, self.url = True, self.server.url
        self.port = int(self.url.rpartition(":")[2])

    def down(self) -> None:
        if self.is_up:
            self.server.close()
        self.is_up = False

    def _answer(self, request: Request) -> Answer:
        action = request.path.rsplit("/", 1)[1]
        with self.changed:
            status, answer = self.refusals.get(action, (200, self.answers.get(action)))
            if status == 200:
                self.requests.append((action, request.body))
            self.changed.notify_all()
        return Answer(status=status) if answer is None else answer_json(answer, status)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retries of one call, so that an outage tests the loop around the calls."""
    monkeypatch.setattr(report_queue, "CALL_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(report_queue, "CLOSE_SECONDS", DEADLINE)
    monkeypatch.setattr(report_queue, "FLUSH_SECONDS", DEADLINE)


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    home.up()
    yield home
    home.down()


@pytest.fixture
def reporter(home: Home, tmp_path: Path) -> Iterator[ApiReporter]:
    """A reporter whose context is not entered yet."""
    client = WorkerClient(home.url, "token", "job_1-1-00000000")
    reporter = ApiReporter(client, "job_1", 1, f"file://{tmp_path}/store", HEARTBEAT)
    yield reporter
    client.close()
    for thread in (reporter._queue._thread, reporter._heartbeats):
        assert not thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder to report."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "state.pt").write_bytes(b"weights")
    return folder


def points(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "time": 0.0, "values": {"loss": 1.0}} for step in steps]


def steps(home: Home) -> list[int]:
    """Return the steps of the received metric points."""
    return [p["step"] for what, body in home.reports if what == "metrics" for p in body["points"]]


def heartbeats(home: Home) -> list[dict[str, Any]]:
    """Return the received heartbeats."""
    return [body for what, body in home.requests if what == "heartbeat"]


def wait_until_over(reporter: ApiReporter) -> None:
    """Wait until `desired` raises."""
    wait_for(reporter._queue._is_over)


def test_two_checkpoints_of_one_step_have_separate_folders(
    home: Home, reporter: ApiReporter, folder: Path
) -> None:
    """The checkpoint is saved before the final evaluation, and again with its metrics."""
    with reporter:
        for step, final in ((2, False), (3, False), (3, True)):
            kept = folder.with_name(f"{step}-{final}")
            shutil.copytree(folder, kept)
            reporter.checkpoint(kept, step, 1.0, {}, final=final)
        reporter.flush()
    places = [
        body["uri"].rpartition("/")[2] for what, body in home.reports if what == "checkpoints"
    ]
    assert places == ["step-000000002", "step-000000003", "step-000000003-final"]


def test_reports_arrive_in_order(home: Home, reporter: ApiReporter, folder: Path) -> None:
    with reporter:
        reporter.metrics(points(1, 2))
        reporter.evaluation(2, 0.5, "backbone", {"knn": 0.5})
        reporter.metrics(points(3))
        reporter.checkpoint(folder, 3, 1.0, {"knn": 0.5}, final=True)
        reporter.artifact(folder / "state.pt")
        reporter.event("note", "done", {})
        reporter.progress(PROGRESS)
        reporter.flush()
        # The last report is the latest progress. Two files were uploaded, each in one part.
        assert {"progress": {**PROGRESS, "worked": 2}} in heartbeats(home)
        assert reporter.keepalive() == "run"
        reporter.flush()
        assert {"progress": {**PROGRESS, "worked": 3}} in heartbeats(home)
    order = [what for i, (what, _) in enumerate(home.reports) if what != home.reports[i - 1][0]]
    assert order == ["metrics", "evaluations", "metrics", "checkpoints", "artifacts", "events"]
    before = home.reports[: [what for what, _ in home.reports].index("evaluations")]
    assert [p["step"] for _, body in before for p in body["points"]] == [1, 2]
    checkpoint = next(body for what, body in home.reports if what == "checkpoints")
    assert checkpoint["final"]
    assert [file["name"] for file in checkpoint["files"]] == ["state.pt"]


def test_log_contains_progress_and_phases(
    home: Home,
    reporter: ApiReporter,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with caplog.at_level(logging.INFO, "workers.reporter"), reporter:
        reporter.phase("training", "The training begins: 8 steps in all")
        for step, seconds in ((3, 0.0), (4, 3600.0), (5, 3600.0)):
            monkeypatch.setattr(reporter_module, "LOG_PROGRESS_SECONDS", seconds)
            reporter.progress({**PROGRESS, "step": step})
        figures = {"knn_k": 20.0, "knn_top1": 0.4125, "distance_q05": 0.5, "effective_rank": 12.0}
        reporter.evaluation(5, 1.0, "backbone", figures)
        size = sum(file.stat().st_size for file in folder.iterdir())
        reporter.checkpoint(folder, 5, 1.0, {}, final=False)
        reporter.flush()
    assert caplog.messages == [
        "The training begins: 8 steps in all",
        "epoch 0.75/2  step 3/8  loss 4.2500  812 images/s  2 s left",
        "epoch 0.75/2  step 4/8  loss 4.2500  812 images/s  2 s left",
        "evaluated backbone at step 5: knn_top1 0.4125, effective_rank 12",
        f"checkpoint of step 5 is written, {size / 1e6:.1f} MB",
        "epoch 0.75/2  step 5/8  loss 4.2500  812 images/s  2 s left",
    ]
    assert {"type": "phase", "data": {"phase": "training"}}.items() <= dict(home.reports)[
        "events"
    ].items()


@pytest.mark.parametrize(
    ("speed", "shown"), [(0.82, "0.8"), (9.96, "10.0"), (10.2, "10"), (812.4, "812")]
)
def test_slow_trainings_have_a_digit_more(speed: float, shown: str) -> None:
    assert f"  {shown} images/s  " in progress_line({**PROGRESS, "images_per_second": speed})


def test_number_of_read_images_is_sent_and_logged(
    home: Home, reporter: ApiReporter, caplog: pytest.LogCaptureFixture
) -> None:
    read = {"images_read": 12_000, "images_total": 60_000}
    with caplog.at_level(logging.INFO, "workers.reporter"), reporter:
        reporter.progress(read)
        reporter.flush()
    assert caplog.messages == ["read 12,000 of 60,000 images"]
    assert {"progress": read} in [body for what, body in home.requests if what == "heartbeat"]


def test_outage_delays_reports_and_loses_none(
    home: Home, reporter: ApiReporter, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with reporter:
        reporter.metrics(points(1))
        home.wait(lambda: any(what == "metrics" for what, _ in home.requests))
        home.down()
        for step in range(2, 40):
            reporter.metrics(points(step))
            started = time.monotonic()
            assert reporter.desired() == "run"
            assert time.monotonic() - started < 0.5  # no request, no lock held over one
        reporter.evaluation(39, 1.0, "backbone", {"knn": 0.5})
        reporter.checkpoint(folder, 39, 1.0, {}, final=False)
        wait_for(lambda: caplog.text.count("does not answer") >= 3)
        home.up()
        reporter.flush()
        assert steps(home) == list(range(1, 40))
        assert [what for what, _ in home.reports][-2:] == ["evaluations", "checkpoints"]


def test_nan_during_outage_is_reported_once_afterwards(
    home: Home, reporter: ApiReporter, caplog: pytest.LogCaptureFixture
) -> None:
    home.refusals["events"] = (500, {})
    with reporter:
        reporter.metrics([{"step": 1, "time": 0.0, "values": {"loss": float("nan"), "lr": 0.1}}])
        reporter.metrics([{"step": 2, "time": 0.0, "values": {"loss": float("nan"), "lr": 0.1}}])
        wait_for(lambda: "the API has a problem" in caplog.text)
        del home.refusals["events"]
        reporter.flush()
    assert [body["type"] for what, body in home.reports if what == "events"] == ["nan"]
    assert steps(home) == [1, 2]


def test_flush_waits_until_all_reports_have_arrived(home: Home, reporter: ApiReporter) -> None:
    home.refusals["events"] = (500, {"detail": "in trouble"})
    flushed = threading.Event()

    def flush() -> None:
        reporter.flush()
        flushed.set()

    with reporter:
        reporter.event("note", "hello", {})
        waiting = threading.Thread(target=flush)
        waiting.start()
        beats = len(home.requests)
        home.wait(lambda: len(home.requests) > beats + 3)  # heartbeats continue meanwhile
        assert not flushed.is_set()
        with home.changed:
            home.refusals.clear()
        waiting.join(DEADLINE)
        assert flushed.is_set()
        assert [what for what, _ in home.reports] == ["events"]


def test_flush_gives_up_on_unreachable_api(
    home: Home, reporter: ApiReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(report_queue, "CLOSE_SECONDS", 0.2)
    home.down()
    with reporter:
        reporter.event("note", "hello", {})
        with pytest.raises(report_queue.ReportsUndelivered, match="did not arrive"):
            reporter.flush()


@pytest.mark.parametrize("endpoint", ["heartbeat", "events"])
def test_superseded_attempt_stops_without_waiting(
    home: Home, reporter: ApiReporter, endpoint: str
) -> None:
    home.refusals[endpoint] = STALE
    with reporter:
        reporter.event("note", "hello", {})
        wait_until_over(reporter)
        with pytest.raises(StaleAttempt):
            reporter.desired()
        with pytest.raises(StaleAttempt):
            reporter.flush()
        left = time.monotonic()
    assert time.monotonic() - left < DEADLINE / 2


def test_heartbeat_answer_sets_desired_state(home: Home, reporter: ApiReporter) -> None:
    home.answers["heartbeat"] = {"desired": "cancel"}
    with reporter:
        wait_for(lambda: reporter.desired() == "cancel")


def test_reports_queued_before_failure_arrive(
    home: Home, reporter: ApiReporter, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.down()
    back = threading.Timer(0.2, home.up)

    def run() -> None:
        with reporter:
            reporter.metrics(points(1, 2))
            reporter.checkpoint(folder, 2, 1.0, {}, final=False)
            wait_for(lambda: "does not answer" in caplog.text)
            back.start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    back.join()
    assert [what for what, _ in home.reports] == ["metrics", "checkpoints"]


def test_exit_after_error_does_not_wait_forever(
    home: Home,
    reporter: ApiReporter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(report_queue, "CLOSE_SECONDS", 0.3)
    home.down()

    def run() -> None:
        with reporter:
            reporter.metrics(points(1))
            raise ZeroDivisionError

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run()
    assert 0.3 <= time.monotonic() - started < DEADLINE / 2
    assert "did not arrive" in caplog.text


@pytest.mark.parametrize("defect", ["refused checkpoint", "no JSON"])
def test_report_that_cannot_arrive_ends_run(
    home: Home, reporter: ApiReporter, folder: Path, defect: str
) -> None:
    home.refusals["checkpoints"] = REFUSED
    error: Any = pytest.raises(TypeError)
    with reporter:
        if defect == "no JSON":
            reporter.event("note", "no JSON", {"thing": object()})
        else:
            error = pytest.raises(ApiError, match="not like this")
            reporter.checkpoint(folder, 2, 1.0, {}, final=True)
        reporter.event("note", "said after it", {})
        for report in (reporter.flush, reporter.desired):
            with error:
                report()
    assert [body["message"] for _, body in home.reports] == ["said after it"]


def test_other_refused_reports_are_logged_and_dropped(
    home: Home, reporter: ApiReporter, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.refusals |= dict.fromkeys(("metrics", "evaluations", "events", "artifacts"), REFUSED)
    with reporter:
        reporter.metrics(points(1))
        reporter.evaluation(1, 1.0, "backbone", {"knn": 0.5})
        reporter.event("note", "hello", {})
        reporter.artifact(folder / "state.pt")
        reporter.checkpoint(folder, 1, 1.0, {}, final=True)
        reporter.flush()
        assert reporter.desired() == "run"
    assert [what for what, _ in home.reports] == ["checkpoints"]
    assert caplog.text.count("the API refused a report") == 4


@pytest.mark.parametrize("status", [403, 404, 408, 425, 429])
def test_answer_of_a_proxy_delays_reports_and_loses_none(
    status: int, home: Home, reporter: ApiReporter, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a problem document of the API: it is being replaced behind the proxy."""
    home.refusals |= dict.fromkeys(("metrics", "checkpoints"), (status, None))
    with reporter:
        reporter.metrics(points(1))
        reporter.checkpoint(folder, 2, 1.0, {}, final=True)
        wait_for(lambda: f"a proxy answers {status}" in caplog.text)
        assert home.reports == []
        home.refusals.clear()
        reporter.flush()
        assert reporter.desired() == "run"
    assert [what for what, _ in home.reports] == ["metrics", "checkpoints"]


def test_invalid_heartbeat_answer_ends_run(home: Home, reporter: ApiReporter) -> None:
    home.answers["heartbeat"] = {}
    with reporter:
        wait_until_over(reporter)
        with pytest.raises(KeyError):
            reporter.desired()


def test_long_outage_does_not_fill_memory(
    home: Home, reporter: ApiReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "MAX_METRIC_POINTS", 100)
    monkeypatch.setattr(report_queue, "METRIC_POINTS_PER_CALL", 10)
    home.down()
    with reporter:
        for step in range(0, 1000, 5):
            reporter.metrics(points(*range(step, step + 5)))
            reporter.evaluation(step, 1.0, "backbone", {"knn": 0.5})
            queue = reporter._queue
            with queue._changed:
                sending = [] if queue._sending is None else [queue._sending]
                batches = [e for e in (*sending, *queue._queue) if isinstance(e, list)]
                assert sum(len(batch) for batch in batches) == queue._points <= 100
        home.up()
        reporter.flush()
        assert reporter._queue._points == 0
    assert steps(home) == sorted(set(steps(home)))
    assert 40 <= len(steps(home)) <= 100
    assert steps(home)[-1] >= 998
    assert sum(what == "evaluations" for what, _ in home.reports) == 200
    # Metrics from before an evaluation must still arrive before it.
    latest = -1
    for what, body in home.reports:
        if what == "metrics":
            assert len(body["points"]) <= 10
            latest = body["points"][-1]["step"]
        elif what == "evaluations":
            assert latest < body["step"] + 5
