"""Views of `dasl watch` and `dasl show`, without a server."""

import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from service.cli import console
from service.cli.formats import clean, duration, size
from service.cli.show import facts
from service.cli.views import JsonView, PlainView, draw, snapshot_line, sparkline
from service.cli.watching import Snapshot
from service.client.sync.models import Job
from service.wire.events import EventView
from service.wire.jobs import EvaluationView
from tests.support.answers import answer_of

START = datetime(2026, 1, 1, tzinfo=UTC)
PROGRESS = {
    "step": 120,
    "total_steps": 4000,
    "epoch": 3,
    "epochs": 100,
    "loss": 4.12345,
    "images_per_second": 812.4,
    "eta_seconds": 190.0,
}


def _snapshot(status: str = "running", name: str = "n", **progress: object) -> Snapshot:
    job = Job.model_validate(
        answer_of(
            Job,
            id="job_1",
            name=name,
            status=status,
            progress={**PROGRESS, **progress},
            started_at=START,
            finished_at=START + timedelta(seconds=67) if status != "running" else None,
        )
    )
    metrics = {"knn_top1": 0.412, "recall_at_1": 0.31}
    evaluation = EvaluationView.model_validate(answer_of(EvaluationView, metrics=metrics))
    message = "Attempt 1 is running"
    event = answer_of(EventView, seq=1, at=START, type="status", message=message)
    return Snapshot(job, [EventView.model_validate(event)], [5.0, 4.5, 4.2], evaluation)


def test_snapshot_line() -> None:
    assert snapshot_line(_snapshot()) == (
        "epoch 3/100  step 120/4000  812 images/s  loss 4.123  k-NN 41.2%  R@1 31.0%  3 min 10 s left"
    )


def test_images_are_shown_while_they_are_read() -> None:
    def shown(status: str = "running", read: int = 12_000) -> str:
        return snapshot_line(_snapshot(status, images_read=read, images_total=60_000))

    assert shown() == "read 12,000 of 60,000 images"
    # Read: the next report has a step. Not running: the report is of an attempt that has ended.
    assert shown(read=60_000) == shown("retry_wait") == snapshot_line(_snapshot("retry_wait"))
    reading = _snapshot(images_read=12_000, images_total=60_000)
    assert dict(facts(reading.job))["images read"] == "12,000 of 60,000"
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(reading, []))
    assert "images read  12,000 of 60,000" in console.file.getvalue()  # type: ignore[attr-defined]


def test_where_the_time_goes_is_shown_if_the_worker_reports_it() -> None:
    times = {
        "data_wait": 0.034,
        "decode": 1.7,
        "views": 0.12,
        "forward": 0.3,
        "copy": 0.004,
        "optimizer": 0.005,
    }
    shown = "data 3% · views 12% · forward 30% · optimizer 1%"
    snapshot = _snapshot(times={**times, "of a newer worker": 0.5})
    assert snapshot_line(snapshot).endswith(f"3 min 10 s left  time: {shown}")
    assert dict(facts(snapshot.job))["time"] == shown
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(snapshot, []))
    assert shown in console.file.getvalue()  # type: ignore[attr-defined]
    for unknown in (_snapshot(), _snapshot(times=None), _snapshot(times={})):
        assert dict(facts(unknown.job))["time"] is None
        assert "time:" not in snapshot_line(unknown)


def test_accuracies_before_an_evaluation_is_fetched_are_those_of_the_progress() -> None:
    snapshot = _snapshot(knn=0.25, recall_at_1=None)
    accuracies = Snapshot(snapshot.job).accuracies
    assert {each.field: value for each, value in accuracies.items()} == {
        "knn": 0.25,
        "recall_at_1": None,
    }


def test_plain_view_throttles_progress_but_not_events(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(every=3600)
    view.show(_snapshot())
    view.show(_snapshot(step=130))
    view.show_outage("connection refused")
    view.show_outage("connection refused")
    view.show(_snapshot(status="succeeded", step=140))
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [line.split("  ")[:2] for line in lines if line.startswith("epoch")] == [
        ["epoch 3/100", "step 120/4000"],
        ["epoch 3/100", "step 140/4000"],
    ]
    assert lines.count("Attempt 1 is running") == 3
    # Whether training continues is unknown: the server may have been stopped together with its jobs.
    away = "the server does not answer (connection refused); retrying"
    assert [line for line in lines if "does not answer" in line] == [away]
    assert (
        lines[-1] == "succeeded after 1 min 07 s. Download the backbone with: dasl download job_1"
    )


def test_json_view_prints_one_document_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.show(_snapshot())
    view.show(_snapshot(status="failed"))
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(document)) for document in documents] == ["event", "progress", "event", "job"]
    assert documents[1]["progress"]["recall_at_1"] == 0.31


@pytest.mark.parametrize("status", ["running", "failed"])
def test_panel_shows_everything_and_neutralizes_control_sequences(status: str) -> None:
    snapshot = _snapshot(status=status, name="[red]x[/nope]\x1b]0;evil\x07")
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(draw(snapshot, snapshot.events, "away"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("3 / 100", "120 / 4,000", "812", "4.123", "41.2%", "31.0%", status, "away"):
        assert part in text
    assert "Attempt 1 is running" in text
    assert "[red]x[/nope]" in text
    assert "\x1b]0" not in text


def test_panel_before_the_first_step() -> None:
    snapshot = Snapshot(Job.model_validate(answer_of(Job, id="job_1", status="queued")))
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(snapshot, []))
    assert "queued" in console.file.getvalue()  # type: ignore[attr-defined]
    assert snapshot_line(snapshot) == ""


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0, 7]) == "▁█"
    assert len(sparkline(list(range(1000)), width=40)) == 40
    assert sparkline(list(range(100)), width=8) == "▁▂▃▄▅▆▇█"


def test_duration_and_size() -> None:
    seconds = [None, -1, 0.4, 59.6, 187, 7500, 100_000]
    assert [duration(value) for value in seconds] == [
        "-", "0 s", "0 s", "1 min 00 s", "3 min 07 s", "2 h 05 min", "1 d 03 h",
    ]  # fmt: skip
    assert [size(value) for value in [None, 0, 999, 1500, 999_960, 2_500_000, 10**15]] == [
        "-", "0 B", "999 B", "1.5 kB", "1.0 MB", "2.5 MB", "1000.0 TB",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["=1+1", "@cmd", "+a", "-b"])
def test_csv_has_no_formulas(capsys: pytest.CaptureFixture[str], value: str) -> None:
    console.print_csv([value, "a=b"], [[value, -0.5]])
    assert capsys.readouterr().out == f"'{value},a=b\n'{value},-0.5\n"


def test_clean_removes_control_characters() -> None:
    assert clean("a\x1b[31mb\u202ec\td\n") == "a[31mbc\td\n"


@pytest.mark.parametrize(
    ("status", "desired", "shown"),
    [
        ("running", "run", "running"),
        ("running", "pause", "running (pause requested)"),
        ("pausing", "pause", "pausing"),
        ("paused", "pause", "paused"),
        ("pausing", "cancel", "pausing (cancel requested)"),
        ("cancelled", "cancel", "cancelled"),
        ("succeeded", "cancel", "succeeded"),
    ],
)
def test_status_shows_a_pending_request(status: str, desired: str, shown: str) -> None:
    job = Job.model_validate(answer_of(Job, status=status, desired=desired))
    assert dict(facts(job))["status"] == shown


def test_facts_contain_the_verdict() -> None:
    verdict = {"verdict": "healthy", "message": "healthy: knn_top1 0.6", "metrics": {}}
    job = answer_of(Job, status="succeeded", verdict=verdict)
    assert dict(facts(Job.model_validate(job)))["verdict"] == "healthy: knn_top1 0.6"
    assert dict(facts(Job.model_validate(job | {"verdict": None})))["verdict"] is None


def test_facts_omit_unknown_progress() -> None:
    """No progress before the first step, and the time left only while the job is active."""
    job = answer_of(Job, status="cancelled", progress={"at_work": 3})
    known = dict(facts(Job.model_validate(job)))
    assert [known[name] for name in ("step", "loss", "time left")] == [None] * 3
    progress = {"step": 3, "total_steps": 9, "loss": 1.0, "eta_seconds": 60}
    for status, time_left in (("running", "1 min 00 s"), ("queued", None), ("paused", None)):
        given = answer_of(Job, status=status, progress=progress)
        known = dict(facts(Job.model_validate(given)))
        assert (known["step"], known["time left"]) == ("3/9", time_left)
