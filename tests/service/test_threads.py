"""Threads by kind of request: slow reads delay neither heartbeats nor other requests."""

import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from dasl_core.spec.locations import ReadableFolders
from service.api.threads import (
    GENERAL_THREADS,
    HEAVY_THREADS,
    PATH_THREADS_PER_TOKEN,
    STORE_THREADS,
    LimitedThreads,
    Threads,
)
from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.jobs import service as jobs
from service.metrics import repository
from tests.support.api_under_test import Api, refused
from tests.support.polling import until

SECONDS = 60


@dataclass
class Gate:
    """A function that waits until the gate opens."""

    opened: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    largest: int = 0
    _inside: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._inside += 1
                self.largest = max(self.largest, self._inside)
            self.waiting.release()
            try:
                assert self.opened.wait(SECONDS)
                return call(*args, **kwargs)
            finally:
                with self._lock:
                    self._inside -= 1

        return wait

    def wait_for(self, number: int) -> None:
        """Wait until so many calls wait."""
        for _ in range(number):
            assert self.waiting.acquire(timeout=SECONDS)


@pytest.fixture
def requests() -> Iterator[ThreadPoolExecutor]:
    """Threads of clients."""
    with ThreadPoolExecutor(140) as pool:
        yield pool


@pytest.fixture
def gate(requests: ThreadPoolExecutor) -> Iterator[Gate]:
    """A gate that opens at the end, so that no request waits for ever."""
    gate = Gate()
    yield gate
    gate.opened.set()


Answers = Sequence[Future[Any]]


def wait_for_requests(threads: LimitedThreads, number: int) -> None:
    """Wait until so many requests run in these threads or wait for one."""
    what = f"{number} requests"
    until(lambda: threads.requests == number or None, what, SECONDS, pause=0.01)


def heavy_requests(api: Api, pool: ThreadPoolExecutor, job_id: str, tokens: int) -> Answers:
    """Send 16 requests for metrics with each of several tokens."""
    headers = [api.token("read") for _ in range(tokens)]
    path, get = f"/v1/jobs/{job_id}/metrics", cast(Callable[..., Any], api.client.get)
    return [
        pool.submit(get, path, headers=each)
        for each in headers
        for _ in range(api.context.heavy_threads.per_token)
    ]


def test_blocked_heavy_reads_delay_neither_heartbeats_nor_other_requests(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = api.running()
    worker.post("metrics", points=[{"step": 1, "time": 1.0, "values": {"loss": 2.0}}])
    monkeypatch.setattr(repository, "points", gate.guard(repository.points))
    answers = heavy_requests(api, requests, worker.job_id, tokens=4)
    gate.wait_for(HEAVY_THREADS)
    wait_for_requests(api.context.heavy_threads, len(answers))

    def post(action: str, **body: Any) -> Any:
        return requests.submit(worker.post, action, **body).result(SECONDS)

    def get(path: str, **headers: str) -> Any:
        return requests.submit(api.client.get, path, headers=headers).result(SECONDS)

    assert post("heartbeat").json() == {"desired": "run"}
    assert post("metrics", points=[]).status_code == 204
    assert get(f"/v1/jobs/{worker.job_id}").status_code == 200
    # All 64 places are taken.
    for path in ("/v1/jobs?sort=-best.knn_top1", "/v1/usage", f"/v1/jobs/{worker.job_id}/metrics"):
        busy = get(path)
        refused(busy, 503, type="too-many-heavy-requests")
    assert int(busy.headers["retry-after"]) > 0
    gate.opened.set()
    for answer in answers:
        response = answer.result(SECONDS)
        assert response.status_code == 200
        assert response.json()["values"] == {"loss": [2.0]}
    assert gate.largest == HEAVY_THREADS
    assert get(f"/v1/jobs/{worker.job_id}/metrics").status_code == 200


def test_heavy_requests_of_one_token_leave_places_for_others(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.dataset()
    job_id = api.submit()["id"]
    monkeypatch.setattr(repository, "points", gate.guard(repository.points))
    path, greedy = f"/v1/jobs/{job_id}/metrics", api.token("read")
    answers = [
        requests.submit(api.client.get, path, headers=greedy)
        for _ in range(api.context.heavy_threads.per_token)
    ]
    wait_for_requests(api.context.heavy_threads, len(answers))
    refused(api.client.get(path, headers=greedy), 429, type="too-many-heavy-requests")
    other = requests.submit(api.client.get, path)
    wait_for_requests(api.context.heavy_threads, len(answers) + 1)
    gate.opened.set()
    for answer in [*answers, other]:
        assert answer.result(SECONDS).status_code == 200
    assert api.context.heavy_threads.requests == 0


def test_blocked_requests_of_clients_do_not_delay_workers(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = api.running()
    monkeypatch.setattr(jobs, "find", gate.guard(jobs.find))
    answers = [
        requests.submit(api.client.get, f"/v1/jobs/{worker.job_id}") for _ in range(GENERAL_THREADS)
    ]
    gate.wait_for(GENERAL_THREADS)
    heartbeat = requests.submit(worker.post, "heartbeat").result(SECONDS)
    assert heartbeat.json() == {"desired": "run"}
    gate.opened.set()
    assert [answer.result(SECONDS).status_code for answer in answers] == [200] * GENERAL_THREADS


@pytest.mark.slow
def test_store_that_does_not_answer_delays_only_those_who_read_it(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads, logs and live logs wait in threads of their own, without a database connection."""
    worker = api.running()
    content = b"step 1\n"
    folder = Path(worker.uri.removeprefix("file://"))
    folder.mkdir(parents=True)
    for name in ("loss.png", "driver.log"):
        (folder / name).write_bytes(content)
    file = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    worker.post(
        "artifacts", name="loss.png", content_type="image/png", uri=f"{worker.uri}/loss.png", **file
    )
    monkeypatch.setattr(Storage, "size", gate.guard(Storage.size))
    monkeypatch.setattr(AttemptLog, "read", gate.guard(AttemptLog.read))
    job = f"/v1/jobs/{worker.job_id}"
    number = GENERAL_THREADS + STORE_THREADS
    assert number <= api.context.store_threads.per_token
    downloader, reader, follower = (api.token("read") for _ in range(3))
    downloads = [
        requests.submit(api.client.get, f"{job}/artifacts/loss.png", headers=downloader)
        for _ in range(number)
    ]
    gate.wait_for(STORE_THREADS)
    stream = {"Accept": "text/event-stream"}
    logs = [
        requests.submit(api.client.get, f"{job}/logs", headers=headers)
        for headers in (reader, follower | stream)
        for _ in range(number)
    ]
    checked_out = api.database.engine.pool.checkedout  # type: ignore[attr-defined]
    until(lambda: checked_out() == 0 or None, "no open connection", SECONDS, pause=0.01)
    heartbeat = requests.submit(worker.post, "heartbeat").result(SECONDS)
    assert heartbeat.json() == {"desired": "run"}
    assert requests.submit(api.client.get, job).result(SECONDS).status_code == 200
    gate.opened.set()
    # Ends the live logs.
    assert worker.post("finish", outcome="succeeded").status_code == 204
    assert gate.largest == STORE_THREADS
    for answer in downloads:
        assert answer.result(SECONDS).content == content
    for answer in logs[:number]:
        assert answer.result(SECONDS).content == content
    for answer in logs[number:]:
        assert "data: step 1" in answer.result(SECONDS).text


def test_store_requests_of_one_token_leave_places_for_others(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store does not answer, a token cannot fill the queue of all."""
    api.dataset()
    worker = api.start(api.submit()["id"])
    log = Path(worker.uri.removeprefix("file://")) / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"step 1\n")
    monkeypatch.setattr(AttemptLog, "text", gate.guard(AttemptLog.text))
    path, store = f"/v1/jobs/{worker.job_id}/logs", api.context.store_threads
    tokens = [api.token("read") for _ in range(store.in_all // store.per_token)]
    answers: list[Future[Any]] = []
    for headers in tokens:
        answers += [
            requests.submit(api.client.get, path, headers=headers) for _ in range(store.per_token)
        ]
        wait_for_requests(store, len(answers))
        answer = requests.submit(api.client.get, path, headers=headers).result(SECONDS)
        refused(answer, 429, type="too-many-store-requests")
    answer = requests.submit(api.client.get, path).result(SECONDS)
    refused(answer, 503, type="too-many-store-requests")
    assert int(answer.headers["retry-after"]) > 0
    gate.opened.set()
    assert {answer.result(SECONDS).content for answer in answers} == {b"step 1\n"}
    assert store.requests == 0


def test_file_system_that_hangs_delays_only_those_who_name_paths(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path checks wait in threads of their own, without a database connection."""
    worker = api.running()
    queued = api.submit()["id"]
    monkeypatch.setattr(ReadableFolders, "allow_tree", gate.guard(ReadableFolders.allow_tree))
    spec, folder = {"dataset": "emoji"}, str(api.settings.home.parent / "images" / "emoji")
    bodies = [
        body
        for number in range((GENERAL_THREADS + PATH_THREADS_PER_TOKEN) // 4)
        for body in (
            ("jobs", spec),
            ("jobs/validate", spec),
            (f"jobs/{queued}/clone", {"checkpoint": None}),
            ("datasets", {"name": f"emoji {number}", "uri": folder}),
        )
    ]
    answers = [requests.submit(api.client.post, f"/v1/{path}", json=body) for path, body in bodies]
    gate.wait_for(PATH_THREADS_PER_TOKEN)
    wait_for_requests(api.context.path_threads, len(answers))
    assert api.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]

    def post(path: str, **body: Any) -> Any:
        return requests.submit(api.client.post, f"/v1/{path}", json=body).result(SECONDS)

    def get(path: str) -> Any:
        return requests.submit(api.client.get, f"/v1/{path}").result(SECONDS)

    heartbeat = requests.submit(worker.post, "heartbeat").result(SECONDS)
    assert heartbeat.json() == {"desired": "run"}
    assert len(get("jobs").json()["data"]) == 2
    assert get(f"jobs/{queued}/events").status_code == 200
    refused(post("jobs/validate", dataset="unknown"), 422, "dataset")
    assert post(f"jobs/{queued}/cancel").json()["status"] == "cancelled"
    gate.opened.set()
    statuses = [answer.result(SECONDS).status_code for answer in answers]
    assert statuses == [201, 200, 202, 201] * (len(answers) // 4)
    assert gate.largest == PATH_THREADS_PER_TOKEN


def test_path_checks_of_one_token_leave_threads_for_others(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the mount of one hangs, another's paths are checked."""
    hanging, sound = (api.settings.home.parent / "images" / name for name in ("hanging", "emoji"))
    sound.mkdir(parents=True)
    allow, wait = ReadableFolders.allow_tree, gate.guard(ReadableFolders.allow_tree)

    def allow_tree(readable: ReadableFolders, folder: str) -> Any:
        return (wait if Path(folder) == hanging else allow)(readable, folder)

    monkeypatch.setattr(ReadableFolders, "allow_tree", allow_tree)
    threads = api.context.path_threads

    def register(folder: Path, name: str, **headers: str) -> Future[Any]:
        body = {"name": name, "uri": str(folder)}
        return requests.submit(api.client.post, "/v1/datasets", json=body, headers=headers)

    greedy = api.token("submit")
    answers = [register(hanging, f"hanging {n}", **greedy) for n in range(threads.per_token)]
    wait_for_requests(threads, len(answers))
    assert register(sound, "emoji", **api.token("submit")).result(SECONDS).status_code == 201
    gate.opened.set()
    assert {answer.result(SECONDS).status_code for answer in answers} == {422}
    assert gate.largest == PATH_THREADS_PER_TOKEN


def test_number_of_path_checks_that_wait_is_limited(
    api: Api, gate: Gate, requests: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients give up after some time and repeat their requests while a file system hangs."""
    api.dataset()
    monkeypatch.setattr(ReadableFolders, "allow_tree", gate.guard(ReadableFolders.allow_tree))
    threads, spec = api.context.path_threads, {"dataset": "emoji"}
    monkeypatch.setattr(threads, "per_token", 2)
    monkeypatch.setattr(threads, "in_all", 4)

    def validate(headers: dict[str, str]) -> Future[Any]:
        return requests.submit(api.client.post, "/v1/jobs/validate", json=spec, headers=headers)

    answers: list[Future[Any]] = []
    for headers in (api.token("read"), api.token("read")):
        answers += [validate(headers) for _ in range(2)]
        wait_for_requests(threads, len(answers))
        refused(validate(headers).result(SECONDS), 429, type="too-many-path-requests")
    answer = validate(api.token("read")).result(SECONDS)
    problem = refused(answer, 503, type="too-many-path-requests")
    assert "file system may hang" in problem["detail"]
    assert int(answer.headers["retry-after"]) > 0
    gate.opened.set()
    assert [answer.result(SECONDS).status_code for answer in answers] == [200] * 4
    assert threads.requests == 0


@pytest.mark.parametrize("reads", [True, False], ids=["it is read", "it is sent"])
def test_answer_is_closed_when_the_client_leaves(reads: bool) -> None:
    """Its file must not stay open until Python next collects garbage."""
    closed, read = threading.Event(), threading.Event()

    def blocks() -> Generator[bytes, None, None]:
        try:
            yield b"first"
            read.set()
            yield b"second"
        finally:
            closed.set()

    answer = blocks()  # held: the end of its last reference would close it, too

    async def send(scope: anyio.CancelScope) -> None:
        async for _ in Threads(1).iterate(answer):
            if not reads:
                scope.cancel()
                await anyio.sleep_forever()
            if read.is_set():
                raise AssertionError("the client has left")
            scope.cancel()

    async def leave() -> None:
        with anyio.CancelScope() as scope:
            await send(scope)
        with anyio.fail_after(SECONDS):
            while not closed.is_set():
                await anyio.sleep(0.01)

    anyio.run(leave)
    assert closed.is_set()


@pytest.mark.dialect
def test_statement_that_takes_too_long_is_a_problem_of_its_own(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {
        "postgresql": "SELECT pg_sleep(60)",
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    }[api.database.engine.dialect.name]

    def points(session: Session, *_: object) -> object:
        return session.execute(text(slow)).all()

    api.dataset()
    job_id = api.submit()["id"]
    monkeypatch.setattr(repository, "points", points)
    monkeypatch.setattr(api.settings, "statement_seconds", 0.2)
    answer = api.client.get(f"/v1/jobs/{job_id}/metrics")
    problem = refused(answer, 503, type="read-timeout")
    assert "DASL_STATEMENT_SECONDS" in problem["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert api.client.get(f"/v1/jobs/{job_id}").status_code == 200
