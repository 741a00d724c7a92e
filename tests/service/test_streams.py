"""Events and logs: as lists, as live streams, resumed and across restarts."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from service import lifecycle
from service.api import sse
from service.artifacts.attempt_log import AttemptLog
from service.client.models import ServerSentEvent
from service.client.sync.sse import parse
from service.jobs import streams
from tests.support.api_under_test import Api, refused
from tests.support.polling import wait_for

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def live(api: Api) -> Iterator[httpx.Client]:
    """The same API over a real socket, where a response arrives incrementally."""
    server = uvicorn.Server(uvicorn.Config(api.client.app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"Authorization": api.client.headers["authorization"]}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
        yield client
    server.should_exit = True
    api.context.closing.set()
    thread.join(20)
    assert not thread.is_alive()


@contextmanager
def following(
    client: httpx.Client, path: str, last_id: str = "", **params: Any
) -> Iterator[Iterator[ServerSentEvent]]:
    headers = {**STREAM, **({"Last-Event-ID": last_id} if last_id else {})}
    with client.stream("GET", path, headers=headers, params=params) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield parse(answer.iter_bytes())


def write_log(api: Api, job_id: str, number: int, text: str) -> None:
    path = Path(api.context.storage.log_uri(job_id, number).removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode())


def test_event_list_pages_in_order(api: Api) -> None:
    worker = api.running()
    for number in range(5):
        worker.post("events", type="note", message=f"note {number}", data={"n": number})
    path = f"/v1/jobs/{worker.job_id}/events"
    events, after = [], 0
    while True:
        page = api.client.get(path, params={"after": after, "limit": 3}).json()
        events += page["data"]
        after = page["next"]
        if not page["has_more"]:
            break
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert events[-1]["data"] == {"n": 4}
    refused(api.client.get(path, params={"after": -1}), 422, "after")
    refused(api.client.get(path, params={"after": 2**31}), 422, "after")


def test_event_stream_is_live_resumable_and_ends_with_the_job(api: Api, live: httpx.Client) -> None:
    worker = api.running()
    path = f"/v1/jobs/{worker.job_id}/events"
    with following(live, path) as messages:
        first = [next(messages) for _ in range(3)]
        assert [message.id for message in first] == ["1", "2", "3"]
        worker.post("events", type="note", message="line\none")
        note = next(messages)
        assert (note.event, note.id, json.loads(note.data)["type"]) == ("message", "4", "note")
        worker.post("finish", outcome="succeeded")
        assert [message.id for message in messages] == ["5"], "and the stream has ended"
    with following(live, path, last_id="3") as messages:
        assert [message.id for message in messages] == ["4", "5"]
    with following(live, path, last_id="5") as messages:
        assert list(messages) == []
    for bad in ("x", "-1", "1.5", "²", "9" * 30):
        headers = {b"Accept": b"text/event-stream", b"Last-Event-ID": bad.encode()}
        answer = live.get(path, headers=headers)
        refused(answer, 422, "Last-Event-ID")


def test_idle_stream_sends_heartbeats_and_holds_no_connection(api: Api, live: httpx.Client) -> None:
    worker = api.running()
    path = f"/v1/jobs/{worker.job_id}/events"
    with live.stream("GET", path, headers=STREAM) as answer:
        lines = answer.iter_lines()
        assert any(line.startswith(": ") for line in lines)
        # The stream holds a connection only while it polls.
        wait_for(lambda: api.database.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]


def test_event_stream_sends_backlog_in_batches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_EVENTS_AT_ONCE", 3)
    worker = api.running()
    for number in range(7):
        worker.post("events", type="note", message=str(number))
    worker.post("finish", outcome="succeeded")
    with api.client.stream("GET", f"/v1/jobs/{worker.job_id}/events", headers=STREAM) as answer:
        messages = list(parse(answer.iter_bytes()))
    assert [message.id for message in messages] == [str(seq) for seq in range(1, 12)]


def test_log_is_served_as_text_with_tail(api: Api) -> None:
    worker = api.running()
    path = f"/v1/jobs/{worker.job_id}/logs"
    assert (api.client.get(path).status_code, api.client.get(path).text) == (200, "")
    lines = [f"line {number} ü\n" for number in range(9000)]
    write_log(api, worker.job_id, 1, "".join(lines))
    assert api.client.get(path).text == "".join(lines)
    for tail in (0, 1, 3, 8999, 9000, 100_000):
        expected = "".join(lines[-tail:]) if tail else ""
        assert api.client.get(path, params={"tail": tail}).text == expected
    assert api.client.get(path, params={"attempt": 1, "tail": 1}).text == lines[-1]
    refused(api.client.get(path, params={"attempt": 2}), 404)
    refused(api.client.get(path, params={"tail": -1}), 422, "tail")
    refused(api.client.get(path, headers={**STREAM, "Last-Event-ID": "1"}), 422, "Last-Event-ID")


def test_log_stream_continues_through_a_restart(
    api: Api, live: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LOG_SETTLES_SECONDS", 0.05)
    worker = api.running()
    job_id = worker.job_id
    path = f"/v1/jobs/{job_id}/logs"
    write_log(api, job_id, 1, "one\ntwo\nthr")
    with following(live, path) as messages:
        assert next(messages).data == "one\ntwo"
        write_log(api, job_id, 1, "ee\nfour without an end")
        three = next(messages)
        assert three.data == "three"
        worker.post("finish", outcome="failed", error={"type": "x", "message": "y"})
        with api.database.write() as session:
            lifecycle.requeue(session, job_id)
        second = api.run(job_id)
        write_log(api, job_id, 2, "again\rprogress\r\nmore\n")
        rest = [next(messages).data for _ in range(2)]
        assert rest == ["four without an end", "again\nprogress\nmore"]
        second.post("finish", outcome="succeeded")
        assert list(messages) == []
    with following(live, path, last_id=three.id) as messages:
        assert [message.data for message in messages] == rest
    with following(live, path, tail=1) as messages:
        assert [message.data for message in messages] == ["more"]


def test_log_stream_sends_blank_lines(api: Api, live: httpx.Client) -> None:
    worker = api.running()
    write_log(api, worker.job_id, 1, "\n")
    with following(live, f"/v1/jobs/{worker.job_id}/logs") as messages:
        blank = next(messages)
        assert (blank.event, blank.data) == ("log", "")
        write_log(api, worker.job_id, 1, "text\n")
        assert next(messages).data == "text"


def test_log_stream_continues_over_omitted_bytes(
    api: Api, live: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LOG_SETTLES_SECONDS", 0.05)
    worker = api.running()
    log, limit = AttemptLog(api.context.storage, worker.job_id, 1), 16 * 64
    path = f"/v1/jobs/{worker.job_id}/logs"
    lines = [f"line {number:04}" for number in range(1000)]

    def write(start: int, stop: int) -> None:
        for number in range(start, stop):
            log.append(number * 10, f"{lines[number]}\n".encode(), limit)

    write(0, 20)
    with following(live, path) as messages:
        first = next(messages)
        assert first.data.split("\n") == lines[:20]
        write(20, 1000)
        worker.post("finish", outcome="succeeded")
        rest = [line for message in messages for line in message.data.split("\n")]
        assert rest[-40:] == lines[-40:]
    # A resumed stream gets the rest of the log and the number of omitted bytes.
    with following(live, path, last_id=first.id) as messages:
        again = [line for message in messages for line in message.data.split("\n")]
    gap = next(index for index, line in enumerate(again) if "bytes were left out" in line)
    assert again[:gap] == lines[20 : 20 + gap]
    assert again[gap + 1 :] == lines[gap + 1 - len(again) :]
    text = api.client.get(path).text.splitlines()
    assert text == lines[:20] + again
    assert api.client.get(path, params={"tail": 3}).text.splitlines() == lines[-3:]
    with following(live, path, tail=3) as messages:
        assert [message.data for message in messages] == ["\n".join(lines[-3:])]


def test_stream_ends_when_token_is_revoked(api: Api, live: httpx.Client) -> None:
    worker = api.running()
    theirs = api.token("read")
    live.headers.update(theirs)
    with following(live, f"/v1/jobs/{worker.job_id}/events") as events:
        assert json.loads(next(events).data)["type"] == "status"
        admin = api.token("admin")
        tokens = api.client.get("/v1/tokens", headers=admin).json()["data"]
        reader = next(token["id"] for token in tokens if token["scopes"] == ["read"])
        assert api.client.delete(f"/v1/tokens/{reader}", headers=admin).is_success
        types = [json.loads(event.data)["type"] for event in events]
        assert "note" not in types, "the server has ended the stream"
    assert api.client.get(f"/v1/jobs/{worker.job_id}").json()["status"] == "running"


def test_stream_of_an_operator_ends_when_the_user_is_demoted(api: Api, live: httpx.Client) -> None:
    worker = api.running()
    root = api.token("operator", tenant="operations")
    body: dict[str, Any] = {"name": "eve", "role": "operator"}
    user = api.client.post("/v1/users", json=body, headers=root).json()["id"]
    body = {"name": "eve", "scopes": ["operator"], "user_id": user}
    token = api.client.post("/v1/tokens", json=body, headers=root).json()["token"]
    live.headers.update({"Authorization": f"Bearer {token}", "DASL-Tenant": "default"})
    with following(live, f"/v1/jobs/{worker.job_id}/events") as events:
        assert json.loads(next(events).data)["type"] == "status"
        changed = api.client.patch(f"/v1/users/{user}", json={"role": "read"}, headers=root)
        assert changed.is_success, changed.text
        assert "note" not in [json.loads(event.data)["type"] for event in events]


def test_streams_per_token_are_limited(
    api: Api, live: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "_PER_TOKEN", 2)
    path = f"/v1/jobs/{api.running().job_id}/events"
    with following(live, path) as first:
        next(first)
        with following(live, path) as second:
            next(second)
            refused(live.get(path, headers=STREAM), 429, None, "too-many-streams")
            other = live.get("/v1/jobs", headers=api.token("read"))
            assert other.status_code == 200
    wait_for(lambda: sum(api.context.streams.values()) == 0)
    with following(live, path) as again:
        next(again)


@pytest.mark.parametrize("streams", [1, 100, 280, 5000])
def test_polls_of_all_streams_take_half_of_a_core_at_most(streams: int) -> None:
    """280 idle pages of jobs filled it."""
    seconds = sse.pause(0.5, streams)
    assert seconds >= 0.5
    assert 0.0018 * streams / seconds <= 0.5
