"""Patience with outages, and refusals as sentences."""

import json
import socket
import subprocess
import sys
import threading

import pytest

from service.cli.formats import plain
from service.client import ApiError, Client, ConnectionFailed, StaleAttempt, WorkerClient
from service.protocol import IngestReport
from service.wire.events import EventView
from service.wire.jobs import JobView
from tests.support.answers import answer_of
from tests.support.scripted_server import Answer, Request, answer_json, scripted

JOB = answer_of(JobView, id="job_1", name="n", status="queued")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_missing_server_is_reported() -> None:
    url = f"http://127.0.0.1:{_free_port()}"
    with pytest.raises(ConnectionFailed) as caught:
        Client(url, patience=0).jobs.get("job_1")
    assert url in str(caught.value)
    assert "dasl serve" in str(caught.value)


def test_request_waits_for_a_late_server() -> None:
    port = _free_port()
    servers = []

    def start() -> None:
        context = scripted(lambda _: answer_json(JOB), port)
        context.__enter__()
        servers.append(context)

    timer = threading.Timer(0.3, start)
    timer.start()
    try:
        assert Client(f"http://127.0.0.1:{port}", patience=20).jobs.get("job_1").id == "job_1"
    finally:
        timer.join()
        servers[0].__exit__(None, None, None)


def test_busy_answers_are_retried_with_the_same_key() -> None:
    answers = [answer_json({}, 503), answer_json({}, 502), answer_json(JOB, 201)]
    with scripted(lambda _: answers.pop(0)) as server:
        assert Client(server.url, "t").jobs.submit({"dataset": "d"}).id == "job_1"
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1
    assert server.requests[0].headers["authorization"] == "Bearer t"


def test_other_requests_are_sent_once() -> None:
    with (
        scripted(lambda _: answer_json({"title": "Starting"}, 503)) as server,
        pytest.raises(ApiError, match="Starting"),
    ):
        Client(server.url).jobs.cancel("job_1")
    assert len(server.requests) == 1


def test_api_error_message_lists_fields() -> None:
    problem = {
        "type": "https://example.org/problems/invalid-spec",
        "title": "Invalid spec",
        "status": 422,
        "detail": "2 fields of the spec are not valid.",
        "errors": [
            {
                "field": "train.epochs",
                "message": "is out of range",
                "given": "0",
                "expected": ">= 1",
            },
            {"field": "nmae", "message": "unknown key", "given": None, "expected": None},
        ],
    }
    with scripted(lambda _: answer_json(problem, 422)) as server, pytest.raises(ApiError) as caught:
        Client(server.url).jobs.submit({})
    assert caught.value.status == 422
    assert caught.value.errors[0].field == "train.epochs"
    assert str(caught.value).splitlines() == [
        "2 fields of the spec are not valid.",
        "  train.epochs: is out of range (given 0; expected >= 1)",
        "  nmae: unknown key",
    ]


def test_missing_token_message_has_a_remedy() -> None:
    with (
        scripted(lambda _: answer_json({"title": "Unauthorized"}, 401)) as server,
        pytest.raises(ApiError, match="DASL_TOKEN"),
    ):
        Client(server.url).jobs.get("job_1")


def test_limit_of_a_proxy_is_named_with_its_setting() -> None:
    nginx = Answer(b"<html>413 Request Entity Too Large</html>", 413, {"Content-Type": "text/html"})
    with (
        scripted(lambda _: nginx) as server,
        pytest.raises(ApiError, match=r"A proxy in front of .*client_max_body_size 64m"),
    ):
        Client(server.url).jobs.cancel("job_1")
    limit = answer_json(
        {"type": "body-too-large", "title": "Too large", "detail": "at most 1 MB"}, 413
    )
    with scripted(lambda _: limit) as server, pytest.raises(ApiError, match=r"^at most 1 MB$"):
        Client(server.url).jobs.cancel("job_1")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>hello</html>", 200, {"Content-Type": "text/html"}),
        Answer(b"", 301, {"Location": "https://elsewhere/"}),
    ],
)
def test_unexpected_answers_are_reported(answer: Answer) -> None:
    with (
        scripted(lambda _: answer) as server,
        pytest.raises(ConnectionFailed, match=r"not a DASL server|redirects to"),
    ):
        Client(server.url).jobs.get("job_1")


@pytest.mark.parametrize("content", [b"[]", b"null", b"", b'{"data": null}', b"{}"])
def test_list_of_another_server_is_reported(content: bytes) -> None:
    with (
        scripted(lambda _: Answer(content, 200, {"Content-Type": "application/json"})) as server,
        pytest.raises(ConnectionFailed, match="not a DASL server"),
    ):
        list(Client(server.url).jobs.list())


def test_damaged_compression_is_reported() -> None:
    damaged = Answer(b"{}", 200, {"Content-Encoding": "gzip"})
    with scripted(lambda _: damaged) as server, pytest.raises(ConnectionFailed, match="header"):
        Client(server.url, patience=0).jobs.get("job_1")


@pytest.mark.parametrize("wrong", ["", ".", "..", "job_1/events"])
def test_id_that_changes_the_path_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        Client("http://127.0.0.1:1").jobs.get(wrong)


def test_pages_are_requested_when_needed() -> None:
    def handler(request: Request) -> Answer:
        if "after=c1" in request.path:
            return answer_json({"data": [{**JOB, "id": "job_3"}], "has_more": False, "next": None})
        data = [{**JOB, "id": "job_1"}, {**JOB, "id": "job_2"}]
        return answer_json({"data": data, "has_more": True, "next": "c1"})

    with scripted(handler) as server:
        jobs = Client(server.url).jobs.list(status="queued", page_size=2)
        assert next(jobs).id == "job_1"
        assert len(server.requests) == 1
        assert [job.id for job in jobs] == ["job_2", "job_3"]
    assert all("status=queued" in request.path for request in server.requests)


def test_unknown_fields_are_kept() -> None:
    with scripted(lambda _: answer_json({**JOB, "novelty": {"x": 1}})) as server:
        job = Client(server.url).jobs.get("job_1")
    assert plain(job)["novelty"] == {"x": 1}


def test_stream_events_resumes_a_lost_stream_in_order() -> None:
    def message(seq: int, kind: str = "note", to: str = "") -> bytes:
        event = answer_of(EventView, seq=seq, type=kind, data={"to": to})
        return f"id: {seq}\ndata: {json.dumps(event)}\n\n".encode()

    first = message(1) + message(2) + b"id: 3\nda"
    rest = message(3) + message(4, "status", "succeeded")

    def handler(request: Request) -> Answer:
        if not request.path.endswith("/events"):
            return answer_json({**JOB, "status": "running"})
        if request.headers.get("last-event-id") == "2":
            return Answer(rest)
        return Answer(first + b"x" * 100, cut_after=len(first))

    with scripted(handler) as server:
        events = list(Client(server.url).jobs.stream_events("job_1"))
    assert [event.seq for event in events] == [1, 2, 3, 4]


def test_worker_client_removes_non_finite_values() -> None:
    with scripted(lambda _: answer_json({"desired": "cancel"})) as server:
        worker = WorkerClient(server.url, "epoch", "job_1-2-00000000")
        points = [
            {"step": 1, "time": 0.5, "values": {"loss": float("nan"), "lr": 0.1}},
            {"step": 2, "time": 0.6, "values": {"loss": float("inf")}},
        ]
        worker.metrics(points)
        assert worker.heartbeat({"step": 2, "loss": float("nan")}) == "cancel"
    sent = [(request.path.rpartition("/")[2], request.body) for request in server.requests]
    assert sent == [
        (
            "events",
            {
                "type": "nan",
                "message": "loss is nan at step 1",
                "data": {"metric": "loss", "step": 1},
            },
        ),
        ("metrics", {"points": [{"step": 1, "time": 0.5, "values": {"lr": 0.1}}]}),
        ("heartbeat", {"progress": {"step": 2}}),
    ]
    assert server.requests[0].path == "/worker/v1/runs/job_1-2-00000000/events"


def test_worker_client_refuses_invalid_report_as_the_api_does() -> None:
    with scripted(lambda _: answer_json({}, 204)) as server:
        worker = WorkerClient(server.url, "token", run="job_1-2-00000000")
        with pytest.raises(ApiError) as refused:
            worker.event("note", "x" * 20_001)
        assert (refused.value.status, refused.value.type) == (422, "validation")
        assert [error.field for error in refused.value.errors] == ["message"]
        with pytest.raises(ApiError, match="body: is not valid") as refused:
            worker.task_succeeded(IngestReport)
        assert [error.field for error in refused.value.errors] == ["body"]
    assert server.requests == []


def test_worker_client_raises_stale_attempt_and_retries_outages() -> None:
    stale = {"type": "https://example.org/problems/stale-attempt", "title": "Stale"}
    answers = [answer_json({}, 503), answer_json(stale, 409)]
    with scripted(lambda _: answers.pop(0)) as server:
        worker = WorkerClient(server.url, "epoch", "job_1-2-00000000")
        with pytest.raises(StaleAttempt):
            worker.heartbeat(patience=10)
    with pytest.raises(ConnectionFailed):
        worker.heartbeat(patience=0)


def test_worker_whose_token_is_not_valid_is_superseded() -> None:
    answers = [
        answer_json({"type": "unauthenticated", "title": "Unauthorized"}, 401),
        Answer(b"log in first", 401, {"Content-Type": "text/plain"}),
    ]
    with scripted(lambda _: answers.pop(0)) as server:
        worker = WorkerClient(server.url, "epoch", run="job_1-2-00000000")
        with pytest.raises(StaleAttempt):
            worker.heartbeat(patience=10)
        with pytest.raises(ApiError) as of_a_proxy:
            worker.heartbeat(patience=10)
    assert not isinstance(of_a_proxy.value, StaleAttempt)


@pytest.mark.parametrize(
    ("modules", "unneeded"),
    [
        ("service.cli.app", ("httpx", "pydantic", "yaml", "rich.live")),
        ("service.client.aio.client, service.client.sync.client", ("dasl_core.spec",)),
    ],
)
def test_imports_are_only_what_is_needed_at_once(modules: str, unneeded: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print([n for n in sys.modules if n.startswith({unneeded})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
