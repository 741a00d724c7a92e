"""`dasl cluster` against a scripted server."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.app import app
from service.wire.usage import UsageView
from tests.support.answers import answer_of
from tests.support.command_line import run
from tests.support.scripted_server import Answer, Request, answer_json, scripted

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
    ],
)
def test_cluster_shows_the_queue_with_reasons(
    answer: dict[str, Any], waiting: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer |= {"total_cpus": 4, "allocated_cpus": 3, "used_cpus": 1}
    with scripted(lambda _: answer_json(answer)) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        result = run("cluster")
    lines = result.stdout.splitlines()
    assert "CPUs     4 in total, 3 allocated to jobs, 1 used by workers" in lines
    assert [line.split("  ")[-1] for line in lines if line.startswith("waiting")] == [waiting]
    assert lines[-1].startswith("5         job_1    a     ")
    assert lines[-1].endswith(f"  {row}")


def test_usage_shows_hours_by_tag_and_says_if_groups_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths: list[str] = []
    rows = [{"value": "vision", "name": None, "jobs": 3, "gpu_hours": 1.25, "cpu_hours": 10}]

    def answer(request: Request) -> Answer:
        paths.append(request.path)
        return answer_json(answer_of(UsageView, group_by="tag:team", data=rows))

    with scripted(answer) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        command = ["usage", "--from", "2026-01-01", "--by", "tag:team"]
        result = CliRunner().invoke(app, command)
        as_json = CliRunner().invoke(app, [*command, "--json"])
    assert paths[0] == "/v1/usage?from=2026-01-01&group_by=tag%3Ateam"
    assert result.stdout.splitlines()[-1].split() == ["vision", "-", "3", "1.2", "10.0"]
    assert "Only the first 1" in result.stderr
    assert json.loads(as_json.stdout)["data"][0]["gpu_hours"] == 1.25


@pytest.mark.parametrize("node", ["gpu-1", "nonsense"])
def test_drain_of_unknown_node_says_so_and_how_to_end_it(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"id": "a1", "address": "10.0.0.1", "name": "gpu-1"}]
    with scripted(lambda _: answer_json({"data": [], "nodes": nodes})) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        result = run("drain", node)
    if node == "gpu-1":
        assert (result.stdout, result.stderr) == ("gpu-1 gets no new workers.\n", "")
    else:
        assert result.stdout == ""
        assert "No node that is up has the id, name or address 'nonsense'" in result.stderr
        assert "dasl undrain nonsense" in result.stderr
