"""Events of all jobs of a tenant: their order with concurrent writers, the list with its filters, and the live stream."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from service import lifecycle
from service.client.models import ServerSentEvent
from service.client.sync.sse import parse
from service.db.models import Event
from service.db.session import Database
from service.events import feed as feeds
from service.events import levels, repository
from service.events.feed import Feed, TenantStream
from service.events.repository import EventFilter
from tests.support.api_under_test import Api, refused
from tests.support.statements import recorded_statements

STREAM = {"Accept": "text/event-stream"}
EVERYTHING = EventFilter("default")


@pytest.fixture
def jobs(api: Api) -> list[str]:
    """Three queued jobs."""
    api.dataset()
    return [api.submit(name=f"job-{number}")["id"] for number in range(3)]


def add(database: Database, job_id: str, type: str = "note", **data: Any) -> None:
    with database.write() as session:
        assert lifecycle.append_event(session, job_id, type, f"a {type}", data) is not None


def listed(api: Api, **params: Any) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/events", params=params)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def drained(stream: TenantStream) -> list[dict[str, Any]]:
    """Return all events that a stream has at this moment."""
    messages: list[ServerSentEvent] = []
    more = True
    while more:
        result = stream.poll()
        messages += parse(result.messages)
        more = result.more
    return [json.loads(message.data) for message in messages]


@pytest.mark.dialect
def test_event_that_commits_late_is_not_passed(api: Api, jobs: list[str]) -> None:
    if api.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time, so transactions commit in their order")
    stream = TenantStream(Feed(api.database, 0), EVERYTHING, 0)
    assert len(drained(stream)) == 3
    with api.database.write() as late:
        lifecycle.append_event(late, jobs[0], "note", "first, committed last")
        add(api.database, jobs[1])
        assert [entry["job_id"] for entry in drained(stream)] == [jobs[1]]
        assert len(listed(api)) == 4
    assert [entry["message"] for entry in drained(stream)] == ["first, committed last"]
    assert [entry["job_id"] for entry in listed(api)][:2] == [jobs[0], jobs[1]]


@pytest.mark.dialect
def test_streams_of_two_processes_get_each_event_of_concurrent_writers_once(
    api: Api, jobs: list[str]
) -> None:
    """Writers commit at random moments; the reader of each process also gives positions."""
    per_writer, writers = 25, 4
    written, ended = [], threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(per_writer):
            with api.database.write() as session:
                job = chance.choice(jobs)
                lifecycle.append_event(session, job, "note", f"{seed}:{number}")
                # Transactions overlap, so that they commit in another order than they write in.
                time.sleep(chance.random() / 500)
            written.append(f"{seed}:{number}")

    seen: list[list[dict[str, Any]]] = [[], []]

    def read(entries: list[dict[str, Any]]) -> None:
        stream = TenantStream(Feed(api.database, 0), EVERYTHING, 0)
        while not ended.is_set():
            entries += drained(stream)
        entries += drained(stream)

    readers = [threading.Thread(target=read, args=(entries,)) for entries in seen]
    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(writers)]
    for thread in (*readers, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert len(written) == writers * per_writer
    assert seen[0] == seen[1]
    ids = [entry["id"] for entry in seen[0]]
    assert ids == list(range(1, 3 + len(written) + 1)), "no gap, no repetition, in order"
    assert sorted(e["message"] for e in seen[0] if e["type"] == "note") == sorted(written)
    for job in jobs:
        numbers = [entry["seq"] for entry in seen[0] if entry["job_id"] == job]
        assert numbers == list(range(1, len(numbers) + 1))
    assert [entry["id"] for entry in listed(api, limit=200)] == ids[::-1]


@pytest.mark.dialect
def test_events_of_a_job_keep_their_order_if_clocks_differ(api: Api, jobs: list[str]) -> None:
    for _ in range(3):
        add(api.database, jobs[0])
    now = datetime.now(UTC)
    with api.database.write() as session:
        for seq, hours in ((1, 5), (2, 1), (3, 3), (4, 0)):
            session.execute(
                update(Event)
                .where(Event.job_id == jobs[0], Event.seq == seq)
                .values(at=now + timedelta(hours=hours))
            )
    entries = [entry for entry in listed(api) if entry["job_id"] == jobs[0]]
    assert [entry["seq"] for entry in entries] == [4, 3, 2, 1]


@pytest.mark.dialect
def test_position_of_a_removed_event_is_not_used_again(api: Api, jobs: list[str]) -> None:
    newest = listed(api)[0]
    with api.database.write() as session:
        session.delete(session.get_one(Event, (newest["job_id"], newest["seq"])))
    add(api.database, jobs[0])
    assert listed(api)[0]["id"] == newest["id"] + 1


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("status", {"from": None, "to": "queued"}, "info"),
    ("status", {"to": "succeeded", "error": None}, "info"),
    ("status", {"to": "retry_wait", "error": {"type": "x", "message": "y"}}, "warning"),
    ("status", {"to": "failed", "error": {"type": "x"}}, "error"),
    ("status", {"to": "failed"}, "error"),
    ("verdict", {"verdict": "healthy"}, "info"),
    ("verdict", {"verdict": "no_better"}, "warning"),
    ("verdict", {"verdict": "collapsed"}, "error"),
    ("collapse", {}, "error"),
    ("nan", {"metric": "loss"}, "warning"),
    ("no_gpus", {"cluster": "with_gpus"}, "warning"),
    ("no_gpus", {"cluster": "without_gpus"}, "info"),
    ("no_gpus", {}, "warning"),  # of an older service
    ("no_gpus", {"cluster": 1}, "warning"),
    ("note", {"to": "failed", "error": "x", "verdict": "collapsed"}, "info"),
    ("checkpoint", {"to": 1, "error": [1, "'"]}, "info"),
]


def test_level_of_an_event(api: Api, jobs: list[str]) -> None:
    for type, data, _ in CASES:
        add(api.database, jobs[0], type, **data)
    expected = [level for _, _, level in CASES]
    entries = [entry for entry in listed(api) if entry["message"].startswith("a ")][::-1]
    assert [entry["level"] for entry in entries] == expected
    with api.database.read() as session:
        query = select(Event.level).where(Event.message.startswith("a ")).order_by(Event.seq)
        assert list(session.scalars(query)) == expected, "what SQL filters by"
    events = api.client.get(f"/v1/jobs/{jobs[0]}/events").json()["data"][1:]
    assert [event["level"] for event in events] == expected, "also in the events of one job"


def test_documentation_names_every_event_above_info() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(error|warning)` \| (.*) \|$", page, flags=re.M))
    assert set(re.findall(r"`([\w-]+)`", rows["warning"])) == levels.WARNINGS | {
        "status",
        "error",
        "verdict",
        *(verdict for verdict, level in levels.BAD_VERDICTS.items() if level == "warning"),
    }
    assert set(re.findall(r"`([\w-]+)`", rows["error"])) == levels.ERRORS | {
        "status",
        "failed",
        "verdict",
        *(verdict for verdict, level in levels.BAD_VERDICTS.items() if level == "error"),
    }


@pytest.mark.dialect
def test_filters_of_the_event_list(api: Api, jobs: list[str]) -> None:
    for number, (name, data, _) in enumerate(CASES):
        add(api.database, jobs[number % 3], name, **data)
    everything = listed(api, limit=200)
    assert [entry["id"] for entry in everything] == list(range(len(everything), 0, -1))
    assert {entry["job_name"] for entry in everything} == {"job-0", "job-1", "job-2"}
    filters: dict[str, list[list[str]]] = {
        "job": [[], jobs[:1], jobs[:2]],
        "type": [[], ["status"], ["status", "nan", "nan", "unheard-of"]],
        "level": [[], ["error"], ["warning", "error"]],
    }
    for job in filters["job"]:
        for type in filters["type"]:
            for level in filters["level"]:
                expected = [
                    entry["id"]
                    for entry in everything
                    if (not job or entry["job_id"] in job)
                    and (not type or entry["type"] in type)
                    and (not level or entry["level"] in level)
                ]
                params = {"job": job, "type": type, "level": level}
                found = [entry["id"] for entry in listed(api, **params, limit=200)]
                assert found == expected, params
                stream = TenantStream(
                    Feed(api.database, 0),
                    EventFilter("default", tuple(job), tuple(type), tuple(level)),
                    0,
                )
                assert [entry["id"] for entry in drained(stream)] == expected[::-1], params


@pytest.mark.dialect
def test_event_list_is_paged_while_events_are_added(api: Api, jobs: list[str]) -> None:
    for _ in range(6):
        add(api.database, jobs[0])
    seen: list[int] = []
    params: dict[str, Any] = {"limit": 4}
    while True:
        page = api.client.get("/v1/events", params=params).json()
        seen += [entry["id"] for entry in page["data"]]
        add(api.database, jobs[1])
        if not page["has_more"]:
            break
        params["after"] = page["next"]
    assert seen == list(range(9, 0, -1))


def test_events_of_deleted_jobs_and_other_tenants_are_hidden(api: Api, jobs: list[str]) -> None:
    api.client.post(f"/v1/jobs/{jobs[0]}/cancel").raise_for_status()
    api.client.delete(f"/v1/jobs/{jobs[0]}").raise_for_status()
    assert {entry["job_id"] for entry in listed(api)} == set(jobs[1:])
    # The page is full although the newest events are hidden.
    assert [entry["job_id"] for entry in listed(api, limit=2)] == [jobs[2], jobs[1]]
    theirs = api.token("admin", tenant="other")
    for params in ({}, {"job": jobs[1]}):
        answer = api.client.get("/v1/events", params=params, headers=theirs)
        assert answer.json()["data"] == []
    stream = TenantStream(Feed(api.database, 0), EventFilter("other", (jobs[1],)), 0)
    assert drained(stream) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("after", "x"),
        ("after", "-1"),
        ("after", "9" * 30),
        ("after", "²"),
        ("job", "job_x"),
        ("level", "fatal"),
        ("type", "x" * 51),
        ("limit", "0"),
        ("limit", "201"),
    ],
)
def test_invalid_parameter_of_the_event_list_is_named(api: Api, field: str, value: str) -> None:
    answer = api.client.get("/v1/events", params={field: value})
    problem = refused(answer, 422)
    assert problem["errors"][0]["field"].startswith(field)


def test_invalid_position_of_the_event_stream_is_named(api: Api) -> None:
    for bad in ("x", "-1", "9" * 30):
        headers = {**STREAM, "Last-Event-ID": bad}
        refused(api.client.get("/v1/events", headers=headers), 422, "Last-Event-ID")
        answer = api.client.get("/v1/events", headers=STREAM, params={"last_event_id": bad})
        refused(answer, 422, "last_event_id")


def following(api: Api, last_id: str = "", **params: Any) -> Any:
    headers = {**STREAM, **({"Last-Event-ID": last_id} if last_id else {})}
    return api.client.stream("GET", "/v1/events", headers=headers, params=params)


def messages_of(answer: Any) -> Iterator[ServerSentEvent]:
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse(answer.iter_bytes())


def test_event_stream_is_live_and_resumable(api: Api, jobs: list[str]) -> None:
    last = listed(api)[0]["id"]
    with following(api, last_event_id=str(last)) as answer:
        messages = messages_of(answer)
        for number, job in enumerate(jobs):
            add(api.database, job, "note", number=number)
            message = next(messages)
            # Unnamed, so that an `EventSource` needs no list of the types.
            assert (message.event, message.id) == ("message", str(last + number + 1))
            entry = json.loads(message.data)
            assert (entry["type"], entry["job_id"], entry["data"]) == (
                "note",
                job,
                {"number": number},
            )
    # As a browser reconnects: the header counts, not the address.
    with following(api, last_id=str(last + 1), last_event_id="0") as answer:
        messages = messages_of(answer)
        assert [next(messages).id for _ in range(2)] == [str(last + 2), str(last + 3)]
    with following(api) as answer:
        messages = messages_of(answer)
        add(api.database, jobs[0], "newest")
        assert json.loads(next(messages).data)["type"] == "newest", (
            "without a position only new events"
        )


def test_position_of_a_replaced_database_starts_at_the_newest_event(
    api: Api, jobs: list[str]
) -> None:
    listed(api)
    with following(api, last_id="1000000") as answer:
        messages = messages_of(answer)
        add(api.database, jobs[0], "newest")
        assert json.loads(next(messages).data)["type"] == "newest"


def test_backlog_of_a_stream_is_sent_in_batches(
    api: Api, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_EVENTS_AT_ONCE", 2)
    for _ in range(4):
        add(api.database, jobs[0])
    stream = TenantStream(Feed(api.database, 0), EVERYTHING, 0)
    assert stream.poll().more
    assert [entry["id"] for entry in drained(stream)] == [3, 4, 5, 6, 7]


def test_streams_of_a_process_share_one_poll(api: Api, jobs: list[str]) -> None:
    feed = Feed(api.database, 3600.0)
    idle = [TenantStream(feed, EVERYTHING, 3) for _ in range(50)]
    listed(api)
    with recorded_statements(api.database) as statements:
        for stream in idle:
            assert stream.poll().messages == []
        assert sum("SELECT" in statement for statement, _ in statements) == 3
        # An event of another tenant costs the streams of this one nothing.
        feed._read_at = 0.0
        api.dataset("theirs", tenant="other")
        theirs = api.token("submit", tenant="other")
        api.client.post("/v1/jobs", json={"dataset": "theirs"}, headers=theirs).raise_for_status()
        statements.clear()
        for stream in idle:
            assert stream.poll().messages == []
        assert sum("ORDER BY" in s for s, _ in statements if s.startswith("SELECT")) == 0


def test_event_list_of_a_full_database_lacks_new_events(
    api: Api, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listed(api)
    add(api.database, jobs[0])

    def full(_: object) -> int:
        raise OperationalError("UPDATE", {}, Exception("database or disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr(repository, "assign_positions", full)
        assert listed(api) == before
    assert len(listed(api)) == len(before) + 1
