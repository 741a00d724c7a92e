"""The asynchronous client against a real server."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dasl_core import outputs
from service.client import ApiError, AsyncClient, ConnectionFailed, JobFailed, WaitTimeout
from service.client.aio import files
from tests.support.answers import answer_of
from tests.support.api_server import Service, running_service
from tests.support.short_training import FILES, SPEC, train


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with the data set `emoji`."""
    with running_service(tmp_path_factory.mktemp("home")) as running:

        async def add() -> None:
            async with AsyncClient(running.url, running.token) as client:
                added = await client.datasets.add(tmp_path_factory.mktemp("emoji"), "emoji")
                await asyncio.to_thread(running.ingest, added)
                assert (await added.wait()).state == "ready"

        asyncio.run(add())
        yield running


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.url, service.token) as client:
        yield client


def requests_in_progress(service: Service) -> int:
    return len(service._server.server_state.tasks)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_job_is_submitted_watched_and_downloaded(service: Service, tmp_path: Path) -> None:
    async def events_of(client: AsyncClient, job_id: str) -> list[str]:
        return [event.type async for event in client.jobs.stream_events(job_id)]

    async def lines_of(client: AsyncClient, job_id: str) -> list[str]:
        return [line async for line in client.jobs.follow_logs(job_id)]

    async def follow() -> None:
        async with connected(service) as client:
            job = await client.jobs.submit(SPEC)
            assert (await job.refresh()).status == "queued"
            watching = asyncio.create_task(events_of(client, job.id))
            logs = asyncio.create_task(lines_of(client, job.id))
            waiting = asyncio.create_task(job.wait(poll=0.02))

            worker = await asyncio.to_thread(service.start_attempt, job.id)
            service.log(job.id, "one\ntwo\n")
            final = await asyncio.to_thread(train, worker)
            assert not waiting.done()
            await asyncio.to_thread(worker.finish, "succeeded")

            assert (await waiting).status == "succeeded"
            types = await watching
            assert types[0] == types[-1] == "status"
            assert {"checkpoint", "evaluation", "note"} <= set(types)
            assert (await logs)[:2] == ["one", "two"]
            metrics = await client.jobs.metrics(job.id, name="loss")
            assert metrics.values == {"loss": [5.0, 4.0, 3.0]}
            assert [each.final for each in await client.jobs.checkpoints(job.id)] == [False, True]
            listed = [each.id async for each in client.jobs.list(page_size=1)]
            assert listed[0] == job.id
            paths = await client.checkpoints.download(final, tmp_path)
            assert {path.name: path.read_bytes() for path in paths} == FILES

    asyncio.run(follow())


@pytest.mark.slow
def test_hundreds_of_calls_and_streams_run_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams that the server gives to a token, which are all connections of httpx's default pool."""
    streams = 100
    monkeypatch.setattr(service.settings, "stream_poll_seconds", 1.0)

    async def watch(client: AsyncClient, job_id: str, first: asyncio.Barrier) -> str:
        last = ""
        async for event in client.jobs.stream_events(job_id):
            if not last:
                await first.wait()
            last = event.message
        return last

    async def run() -> None:
        async with connected(service) as client:
            job = await client.jobs.submit(SPEC)
            everyone = asyncio.Barrier(streams + 1)
            watching = [
                asyncio.create_task(watch(client, job.id, everyone)) for _ in range(streams)
            ]
            await everyone.wait()
            found = await asyncio.gather(*(client.jobs.get(job.id) for _ in range(60)))
            assert {each.id for each in found} == {job.id}
            await job.cancel()
            assert len(set(await asyncio.gather(*watching))) == 1

    asyncio.run(asyncio.wait_for(run(), 120))


def test_cancelled_and_abandoned_streams_end_on_the_server(service: Service) -> None:
    async def run() -> None:
        async with connected(service) as client:
            job = await client.jobs.submit(SPEC)
            received = asyncio.Event()

            async def watch() -> None:
                async for _ in client.jobs.stream_events(job.id):
                    received.set()

            watching = asyncio.create_task(watch())
            await received.wait()
            assert requests_in_progress(service) == 1
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching
            await until(lambda: requests_in_progress(service) == 0)

            async with aclosing(client.jobs.stream_events(job.id)) as events:
                async for _ in events:
                    break
            await until(lambda: requests_in_progress(service) == 0)
            async for _ in client.stream_events(job=job.id, after=0):
                break
            await until(lambda: requests_in_progress(service) == 0)

            waiting = asyncio.create_task(job.wait(poll=60))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await job.refresh()).status == "queued"
            await job.cancel()
            with pytest.raises(JobFailed, match="cancelled"):
                await job.wait()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_errors_are_those_of_the_synchronous_client(service: Service) -> None:
    async def run() -> None:
        async with connected(service) as client:
            with pytest.raises(ApiError) as refused:
                await client.jobs.submit({"dataset": "emoji", "epochs": 1})
            assert refused.value.status == 422
            assert refused.value.errors[0].field == "epochs"
            job = await client.jobs.submit(SPEC)
            with pytest.raises(WaitTimeout):
                await job.wait(timeout=0.05, poll=0.02)
            await job.cancel()
        async with AsyncClient("http://127.0.0.1:9", "dasl_x", patience=0) as absent:
            with pytest.raises(ConnectionFailed, match="connection refused"):
                await absent.cluster()

    asyncio.run(run())


def test_upload_and_download_do_not_block_the_event_loop(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed_in: set[threading.Thread] = set()
    digest = outputs.sha256_of

    def record(path: Path) -> str | None:
        hashed_in.add(threading.current_thread())
        return digest(path)

    monkeypatch.setattr(files, "sha256_of", record)
    folder = tmp_path / "birds"
    folder.mkdir()
    (folder / "wren.png").write_bytes(b"not read before the ingest" * 1000)
    progress: list[tuple[int, int]] = []

    async def run() -> None:
        async with connected(service) as client:
            uploaded = await client.datasets.upload(
                folder, "birds", on_bytes=lambda done, size: progress.append((done, size))
            )
            assert (await client.datasets.get("birds")).id == uploaded.id
            assert progress[-1][0] == progress[-1][1] > 26_000
            job = await client.jobs.submit(SPEC)
            worker = await asyncio.to_thread(service.start_attempt, job.id)
            final = await asyncio.to_thread(train, worker)
            await client.checkpoints.download(final, tmp_path / "weights")
            await client.checkpoints.download(final, tmp_path / "weights")
            await asyncio.to_thread(worker.finish, "succeeded")

    asyncio.run(run())
    assert hashed_in
    assert threading.main_thread() not in hashed_in


def test_records_without_a_client_say_so() -> None:
    from service.client.aio.models import AsyncDataset, AsyncJob

    records: list[Any] = [
        AsyncJob.model_validate(answer_of(AsyncJob)),
        AsyncDataset.model_validate(answer_of(AsyncDataset)),
    ]
    for record in records:
        with pytest.raises(RuntimeError, match="does not come from a client"):
            asyncio.run(record.wait())
