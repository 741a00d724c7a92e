"""`dasl cluster` against a scripted server."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.app import app
from tests.support.scripted_server import answer_json, scripted

REASON = "Waiting for 4 CPUs: 3 of 4 CPUs are in use"
JOB = {"id": "job_1", "name": "a", "priority": 5, "created_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("answer", "waiting", "row"),
    [
        (
            {"queued": 7, "queue": [{**JOB, "waits_for": "room", "reason": REASON}]},
            "7 jobs",
            REASON,
        ),
        ({"queued": 1, "queue": [{**JOB, "waits_for": None, "reason": ""}]}, "1 job", "-"),
        ({"queue": [JOB]}, "1 job", "-"),  # an older server
    ],
)
def test_cluster_shows_the_queue_with_reasons(
    answer: dict[str, Any], waiting: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer |= {"total_cpus": 4, "allocated_cpus": 3, "used_cpus": 1}
    with scripted(lambda _: answer_json(answer)) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        result = CliRunner().invoke(app, ["cluster"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "CPUs     4 in total, 3 allocated to jobs, 1 used by workers" in lines
    assert [line.split("  ")[-1] for line in lines if line.startswith("waiting")] == [waiting]
    assert lines[-1].startswith("5         job_1    a     ")
    assert lines[-1].endswith(f"  {row}")
