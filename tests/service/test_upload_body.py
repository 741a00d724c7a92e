"""Bodies of chunks: how slowly a client may send, and what a slow one holds."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.problems import Problem
from service.api.threads import UPLOAD_THREADS
from service.datasets.uploads import body as bodies
from service.datasets.uploads.body import MIN_BYTES_PER_SECOND, WINDOW_SECONDS, Body
from tests.support.api_under_test import Api
from tests.support.uploads import begin


class Client:
    """A client that sends pieces, each after some seconds, on a clock of its own."""

    def __init__(self, pieces: list[tuple[float, int]]) -> None:
        self.pieces, self.now = pieces, 0.0

    async def send(self) -> AsyncIterator[bytes]:
        for seconds, size in self.pieces:
            self.now += seconds
            yield bytes(size)

    def read(self, store_seconds: float = 0.0) -> int:
        """Return how many bytes are read; storing each block takes some time."""

        async def read_all() -> int:
            body, size = Body(self.send(), lambda: self.now), 0
            while block := await body.read():
                size += len(block)
                self.now += store_seconds
            return size

        return anyio.run(read_all)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=200))
def test_client_above_the_least_rate_is_never_too_slow(seconds: list[float]) -> None:
    pieces = [(each, int(each * MIN_BYTES_PER_SECOND) + 1) for each in seconds]
    assert Client(pieces).read() == sum(size for _, size in pieces)


@pytest.mark.parametrize("share", [0.0001, 0.9])
def test_client_below_the_least_rate_is_too_slow_after_a_window(share: float) -> None:
    client = Client([(1.0, max(1, int(share * MIN_BYTES_PER_SECOND)))] * 1000)
    with pytest.raises(Problem) as problem:
        client.read()
    assert problem.value.status_code == 408
    assert client.now == WINDOW_SECONDS


def test_fast_beginning_does_not_excuse_what_follows() -> None:
    client = Client([(0.1, 10 << 20), *[(1.0, 1)] * 1000])
    with pytest.raises(Problem):
        client.read()
    assert client.now <= 2 * WINDOW_SECONDS + 1


def test_time_that_the_store_takes_is_not_the_clients() -> None:
    assert Client([(0.1, 1 << 20)] * 3).read(store_seconds=10 * WINDOW_SECONDS) == 3 << 20


def test_client_that_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WINDOW_SECONDS", 0.01)

    async def nothing() -> AsyncIterator[bytes]:
        await anyio.sleep_forever()
        yield b""

    with pytest.raises(Problem) as problem:
        anyio.run(Body(nothing()).read)
    assert problem.value.status_code == 408


def test_too_slow_chunk_can_be_sent_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WINDOW_SECONDS", 1e-9)
    monkeypatch.setattr(bodies, "MIN_BYTES_PER_SECOND", float("inf"))
    dataset = begin(api, 4).json()["id"]

    def put() -> Any:
        headers = {"Content-Range": "bytes 0-3/4"}
        return api.client.put(f"/v1/datasets/{dataset}/content", content=b"abcd", headers=headers)

    answer = put()
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert answer.json()["type"].endswith("request-timeout")
    shown = api.client.get(f"/v1/datasets/{dataset}").json()
    assert (shown["state"], shown["upload"]["received"]) == ("uploading", 0)
    monkeypatch.undo()
    assert put().json()["upload"]["received"] == 4


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_slow_clients_hold_no_thread(api: Api, database_url: str) -> None:
    """More of them than there are threads: other uploads and requests are answered."""
    slow = [begin(api, 4, name=f"slow-{each}").json()["id"] for each in range(UPLOAD_THREADS + 2)]
    other = begin(api, 4, name="other").json()["id"]
    tokens = [api.token("submit") for _ in range(3)]
    uploads = api.context.upload_threads

    async def scenario() -> None:
        others_done = anyio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"ab"
            await others_done.wait()
            yield b"cd"

        async def put(
            dataset: str, content: bytes | AsyncIterator[bytes], token: dict[str, str]
        ) -> None:
            headers = {"Content-Range": "bytes 0-3/4", **token}
            path = f"/v1/datasets/{dataset}/content"
            answer = await client.put(path, content=content, headers=headers)
            assert answer.status_code == 200, answer.text

        transport = httpx.ASGITransport(app=api.client.app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            anyio.create_task_group() as tasks,
        ):
            for number, dataset in enumerate(slow):
                tasks.start_soon(partial(put, dataset, slowly(), tokens[number % 2]))
            while uploads.requests < len(slow):
                await anyio.sleep(0.01)
            with anyio.fail_after(20):
                await put(other, b"abcd", tokens[2])
                listed = await client.get("/v1/datasets", headers=tokens[2])
            assert listed.status_code == 200
            others_done.set()

    portal = api.client.portal
    assert portal is not None, "the client is open"
    portal.call(scenario)
    for dataset in slow:
        shown = api.client.get(f"/v1/datasets/{dataset}").json()
        assert shown["upload"]["received"] == 4
