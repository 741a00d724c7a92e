"""`dasl watch`: every outcome of a job, server outages, and Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from service.cli import watching
from service.cli.watching import watch_job
from service.client import ApiError, Client, ConnectionFailed, JobFailed, WaitTimeout
from service.wire.events import EventView
from service.wire.jobs import EvaluationView, JobView
from tests.support.answers import answer_of
from tests.support.command_line import run
from tests.support.scripted_server import Answer, Request, ScriptedServer, answer_json, scripted

JOB = "job_1"


class Life:
    """A job that takes a step whenever it is looked at, and ends as `end` after `steps` of them."""

    def __init__(
        self, end: str = "succeeded", steps: int = 3, error_type: str = "RuntimeError"
    ) -> None:
        self.end, self.steps, self.step, self.error_type = end, steps, 0, error_type

    def __call__(self, request: Request) -> Answer:
        path, _, query = request.path.partition("?")
        match path.rpartition("/")[2]:
            case "job_1":
                self.step = min(self.step + 1, self.steps)
                return answer_json(self._job())
            case "events":
                after = int(query.partition("after=")[2].partition("&")[0] or 0)
                events = [
                    answer_of(EventView, seq=seq, type="note", message=f"step {seq} is done")
                    for seq in range(after + 1, self.step + 1)
                ]
                return answer_json({"data": events, "has_more": False, "next": None})
            case "metrics":
                return answer_json({"step": [1], "time": [0.1], "values": {"loss": [4.5]}})
            case "evaluations":
                metrics = {"knn_top1": 0.5, "recall_at_1": 0.25}
                found: list[dict[str, Any]] = [
                    {"subject": "raw", "step": 9, "metrics": {"knn_top1": 0.1}},
                    {"subject": "embedding", "step": 1, "metrics": metrics},
                    {"subject": "backbone", "step": 1, "metrics": {"knn_top1": 0.2}},
                ]
                return answer_json({"data": [answer_of(EvaluationView, **each) for each in found]})
            case "logs":
                return Answer(b"first\nRuntimeError: boom\n")
        return answer_json({"title": "Not found"}, 404)

    def _job(self) -> dict[str, object]:
        ended = self.step == self.steps
        error = (
            {"type": self.error_type, "message": "boom"}
            if self.end in ("failed", "paused")
            else None
        )
        return answer_of(
            JobView,
            id=JOB,
            name="n",
            status=self.end if ended else "running",
            progress={"step": self.step, "total_steps": self.steps, "loss": 4.5},
            error=error if ended else None,
        )


class Notes:
    """A view that keeps what it was shown, and calls `on_show` then."""

    def __init__(self, on_show: Callable[[int], None] = lambda _: None) -> None:
        self.events: list[int] = []
        self.outages = 0
        self.notes: list[str] = []
        self.on_show = on_show

    def show(self, snapshot) -> None:  # type: ignore[no-untyped-def]
        self.events += [event.seq for event in snapshot.events]
        self.on_show(len(self.events))

    def show_outage(self, reason: str) -> None:
        self.outages += 1

    def show_note(self, text: str) -> None:
        self.notes.append(text)


def _environment(server: ScriptedServer) -> dict[str, str]:
    return {"DASL_URL": server.url, "PYTHONUTF8": "1", "XDG_CONFIG_HOME": "/nonexistent"}


def test_watch_prints_plain_lines_until_success() -> None:
    with scripted(Life()) as server:
        done = run("watch", JOB, env=_environment(server))
    assert done.stderr == ""
    lines = [line.split("  ", 1)[1] for line in done.stdout.splitlines()]
    assert [line for line in lines if line.endswith("is done")] == [
        f"step {seq} is done" for seq in (1, 2, 3)
    ]
    assert any("step 3/3  loss 4.5  k-NN 50.0%  R@1 25.0%" in line for line in lines)
    assert lines[-1].startswith("succeeded")


@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("RuntimeError", ["  RuntimeError: boom", "Job job_1 failed: boom"]),
        ("ValueError", ["Job job_1 failed: boom", "Its log: dasl logs job_1"]),
    ],
)
def test_watch_failure_prints_log_lines_unless_a_setting_is_invalid(
    type: str, said: list[str]
) -> None:
    with scripted(Life("failed", 1, error_type=type)) as server:
        done = run("watch", JOB, env=_environment(server), code=1)
    assert done.stderr.splitlines()[-2:] == said


def test_watch_and_wait_end_at_the_time_limit() -> None:
    """Nobody may ever resume the job."""
    with scripted(Life("paused", 1, error_type="max-hours")) as server:
        done = run("watch", JOB, env=_environment(server), code=1)
        with Client(server.url) as client, pytest.raises(JobFailed, match="job_1 paused: boom"):
            client.jobs.wait(JOB, poll=0.0)
    assert done.stderr.splitlines() == ["Job job_1 paused: boom", "Its log: dasl logs job_1"]


def test_watch_cancelled_job_exits_with_1_and_prints_only_json() -> None:
    with scripted(Life("cancelled", 1)) as server:
        done = run("watch", JOB, "--json", env=_environment(server), code=1)
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert documents[-1]["job"]["status"] == "cancelled"


def test_watch_survives_a_server_restart() -> None:
    life = Life(steps=6)
    servers = [ScriptedServer(life)]
    port = int(servers[0].url.rpartition(":")[2])

    def restart(seen: int) -> None:
        if seen == 2:
            servers[0].close()

    class Restarting(Notes):
        def show_outage(self, reason: str) -> None:
            super().show_outage(reason)
            if self.outages == 2:
                servers.append(ScriptedServer(life, port))

    view = Restarting(restart)
    try:
        with Client(servers[0].url, patience=0) as client:
            ended = watch_job(client, JOB, view, poll=0.01)
    finally:
        servers[-1].close()
    assert ended.status == "succeeded"
    assert view.events == [1, 2, 3, 4, 5, 6]
    assert view.outages == 2


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (
            {"database": "ok", "storage": "the disk of the database is full", "ray": "away"},
            "the service cannot store anything: the disk of the database is full",
        ),
        (
            {"database": "cannot be read", "storage": "unknown, as the database cannot be read"},
            "the service is not ready: database: cannot be read; storage: unknown, as the database "
            "cannot be read",
        ),
    ],
)
def test_watch_says_why_a_job_stands_still(
    monkeypatch: pytest.MonkeyPatch, checks: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(watching, "_QUIET_SECONDS", 0.0)

    class StandingStill(Life):
        """A job that takes no step until the service was asked how it is."""

        asked = False

        def __call__(self, request: Request) -> Answer:
            if request.path == "/readyz":
                self.asked = True
                problem = {"title": "Not ready", "type": "not-ready", "checks": checks}
                return answer_json(problem, 503, **{"Retry-After": "30"})
            if not self.asked:
                self.step = 0
            return super().__call__(request)

    view = Notes()
    with scripted(StandingStill()) as server, Client(server.url) as client:
        assert watch_job(client, JOB, view, poll=0.01).status == "succeeded"
    assert view.notes == [said, ""]


def test_watch_names_the_time_of_a_restart() -> None:
    class Restarted(Life):
        """A server that fails for a while and was started again then."""

        requests = 0

        def __call__(self, request: Request) -> Answer:
            self.requests += 1
            if request.path == "/v1/cluster":
                started = f"2026-01-31T12:0{int(self.step > 1)}:00Z"
                return answer_json({"api_started_at": started})
            if self.step == 2 and self.requests < 12:
                return answer_json({"title": "Starting"}, 503)
            return super().__call__(request)

    view = Notes()
    with scripted(Restarted(steps=4)) as server, Client(server.url, patience=0) as client:
        watch_job(client, JOB, view, poll=0.01)
    assert view.outages
    [said] = view.notes
    assert said.startswith("the server was restarted at ")
    assert said.endswith(":01:00")


def test_watch_ends_after_a_long_outage() -> None:
    server = ScriptedServer(Life(steps=1000))

    def close(seen: int) -> None:
        server.close()

    with Client(server.url, patience=0) as client, pytest.raises(ConnectionFailed):
        watch_job(client, JOB, Notes(close), poll=0.01, outage=0.2)


def test_watch_fails_at_once_if_the_server_never_answered() -> None:
    with scripted(Life()) as server:
        pass
    with Client(server.url, patience=0) as client, pytest.raises(ConnectionFailed):
        watch_job(client, JOB, Notes())


def test_watch_unknown_job_fails() -> None:
    with scripted(Life()) as server, Client(server.url) as client:
        with pytest.raises(ApiError, match="Not found"):
            watch_job(client, "job_2", Notes())
        run("watch", "job_2", env=_environment(server), code=1)


def test_watch_draws_a_panel_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with scripted(Life()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "watch", JOB],
            env=_environment(server) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
            stdout=theirs,
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux ends a terminal whose last process is gone
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
        assert process.wait(timeout=30) == 0
    text = shown.decode()
    for part in ("n · job_1", "3 / 3", "50.0%", "25.0%", "succeeded"):
        assert part in text


def test_ctrl_c_does_not_stop_the_job() -> None:
    with scripted(Life(steps=10_000)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "watch", JOB],
            env=_environment(server),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that started the tests in the background has them ignore Ctrl-C, and their
            # children with them; a person at a terminal does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Job job_1 was not stopped" in errors
    assert "dasl cancel job_1" in errors
    assert "Traceback" not in errors
    assert {request.method for request in server.requests} == {"GET"}


def test_wait_in_python() -> None:
    with scripted(Life(steps=3)) as server, Client(server.url) as client:
        assert client.jobs.get(JOB).wait(poll=0.01).status == "succeeded"
    with scripted(Life("failed")) as server, Client(server.url) as client:
        with pytest.raises(JobFailed, match="Job job_1 failed: boom") as caught:
            client.jobs.wait(JOB, poll=0.01)
        assert caught.value.job.error.type == "RuntimeError"
    with scripted(Life(steps=10_000)) as server, pytest.raises(WaitTimeout):
        Client(server.url).jobs.wait(JOB, timeout=0.05, poll=0.01)
