"""The Ray executor understands what Ray answers, and says what it does not understand."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.ray_executor import RayExecutor
from tests.support.scripted_server import Answer, Handler, Request, answer_json, scripted

NO_USAGE: dict[str, Any] = {"data": {"clusterStatus": None}}


USAGE: dict[str, Callable[[Request], Answer]] = {
    "/api/cluster_status": lambda request: answer_json(NO_USAGE),
    "/api/version": lambda request: answer_json({"ray_version": "2.60.1"}),
    "/nodes": lambda request: answer_json({"data": {"summary": []}}),
}
HEAD: dict[str, Any] = {"raylet": {"isHeadNode": True}}
WORKER: dict[str, Any] = {"raylet": {"isHeadNode": False}, "mem": [8.0, 1.0, 87.5, 7.0]}


def nodes(*listed: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"result": {"result": list(listed)}}}


def ray(answers: dict[str, Callable[[Request], Answer]]) -> Handler:
    return lambda request: answers[urlsplit(request.path).path](request)


def cluster_of(listed: Callable[[Request], Answer]) -> Any:
    with scripted(ray(USAGE | {"/api/v0/nodes": listed})) as server:
        return RayExecutor(server.url, None).cluster()


def test_live_nodes_are_found_among_many_dead_ones() -> None:
    from ray.core.generated.gcs_pb2 import GcsNodeInfo
    from ray.dashboard.state_aggregator import StateAPIManager
    from ray.dashboard.state_api_utils import options_from_req

    known = {}
    for number in range(120):
        info = GcsNodeInfo(node_id=os.urandom(28), node_manager_address=f"10.0.0.{number}")
        info.state = GcsNodeInfo.ALIVE if number < 8 else GcsNodeInfo.DEAD
        info.resources_total["CPU"] = 64
        if number == 3:
            info.resources_total["node:__internal_head__"] = 1
        known[info.node_id] = info

    async def all_nodes(**_: Any) -> tuple[dict[bytes, Any], int]:
        return known, 0

    class Query(dict[str, list[str]]):
        def get(self, name: str, default: Any = None) -> Any:
            return self[name][0] if name in self else default

        def getall(self, name: str, default: Any = None) -> Any:
            return self.get(name, default) if name not in self else self[name]

    def listed_by_ray(request: Request) -> Answer:
        query = Query(parse_qs(urlsplit(request.path).query))
        options = options_from_req(SimpleNamespace(query=query))
        manager = StateAPIManager(
            SimpleNamespace(get_all_node_info=all_nodes), ThreadPoolExecutor(1)
        )
        return answer_json(
            {"data": {"result": asdict(asyncio.run(manager.list_nodes(option=options)))}}
        )

    found = cluster_of(listed_by_ray)
    assert {node.address for node in found.nodes} == {f"10.0.0.{number}" for number in range(8)}
    assert found.total_cpus == 8 * 64
    assert [node.address for node in found.nodes if node.is_head] == ["10.0.0.3"]


@pytest.mark.parametrize(
    ("answer", "memory"),
    [
        (
            answer_json({"data": {"summary": [HEAD | {"mem": [8.0, 2.0, 75.0, 6.0]}, WORKER]}}),
            (6.0, 8.0),
        ),
        (answer_json({"data": {"summary": [HEAD]}}), None),
        (answer_json({"data": {"summary": [WORKER]}}), None),
        (Answer(b"not found", 404), None),
    ],
)
def test_memory_of_the_head_is_measured_every_fifteen_seconds(
    answer: Answer, memory: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def summary(request: Request) -> Answer:
        asked.append(request.path)
        return answer

    routes = USAGE | {"/api/v0/nodes": lambda _: answer_json(nodes()), "/nodes": summary}
    with scripted(ray(routes)) as server:
        executor = RayExecutor(server.url, None)
        assert [executor.cluster().head_memory for _ in range(2)] == [memory, memory]
        assert asked == ["/nodes?view=summary"]
        now = time.monotonic()
        monkeypatch.setattr("service.dispatcher.ray_executor.time.monotonic", lambda: now + 16)
        executor.cluster()
        assert len(asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        answer_json(nodes({"state": "ALIVE", "node_id": "a", "node_ip": "10.0.0.1"})),
        answer_json(nodes({"node_id": "a"})),
        answer_json({"data": None}),
        answer_json([]),
        Answer(b"<html>"),
    ],
)
def test_unexpected_answer_counts_as_none(answer: Answer) -> None:
    with pytest.raises(
        ExecutorUnavailable, match=r"GET /api/v0/nodes differs from version .*2\.60"
    ):
        cluster_of(lambda request: answer)


def test_unknown_state_of_a_driver_counts_as_no_answer() -> None:
    answers = {"/api/jobs/job_x-1": lambda request: answer_json({"status": "RECONSIDERED"})}
    with (
        scripted(ray(answers)) as server,
        pytest.raises(ExecutorUnavailable, match="'reconsidered' is not a valid"),
    ):
        RayExecutor(server.url, None).status("job_x-1")


@pytest.mark.parametrize(
    ("version", "warning"),
    [
        ({"ray_version": "2.60.3"}, ""),
        ({"ray_version": "2.61.0"}, "has version 2.61.0; DASL is tested with 2.60 only"),
        ({"ray_version": "2.6.0"}, "has version 2.6.0; DASL is tested with 2.60 only"),
        ({}, "The version of Ray is unknown"),
    ],
)
def test_untested_version_of_ray_is_logged_once_per_connection(
    version: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = USAGE | {
        "/api/v0/nodes": lambda request: answer_json(nodes()),
        "/api/version": lambda request: answer_json(version),
    }
    with scripted(ray(answers)) as server:
        executor = RayExecutor(server.url, None)
        for _ in range(3):
            assert executor.cluster().nodes == ()
    assert len(caplog.messages) == (1 if warning else 0)
    assert warning in "".join(caplog.messages)
    with pytest.raises(ExecutorUnavailable):
        executor.cluster()
    assert not executor._version_checked, "a restarted Ray may have another version"


@pytest.mark.parametrize(
    ("answer", "gone"),
    [
        (answer_json({"deleted": True}), True),
        (Answer(b"Job job_x-1 does not exist", 404), True),
        (Answer(b"RuntimeError: it is in a non-terminal state RUNNING.", 500), False),
    ],
)
def test_deletion_tells_whether_the_submission_is_gone(answer: Answer, gone: bool) -> None:
    with scripted(ray({"/api/jobs/job_x-1": lambda request: answer})) as server:
        assert RayExecutor(server.url, None).delete("job_x-1") is gone


def test_deletion_that_ray_fails_to_do_counts_as_no_answer() -> None:
    answers = {"/api/jobs/job_x-1": lambda request: Answer(b"TimeoutError", 500)}
    with (
        scripted(ray(answers)) as server,
        pytest.raises(ExecutorUnavailable, match="DELETE /api/jobs/job_x-1 with 500"),
    ):
        RayExecutor(server.url, None).delete("job_x-1")
