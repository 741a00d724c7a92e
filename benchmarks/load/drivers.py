"""The process that simulates the drivers and ranks of running jobs: their requests to the worker API, no training.

As a real job does, the driver and rank 0 each send a heartbeat every two seconds, and rank 0 the metrics since its last
one. Five steps per second with twenty metrics each are 100 points per second and job.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from typing import Any

from benchmarks.load.traffic import Sender, Tallies
from service.server.tuning import freeze_garbage_collection

HEARTBEAT_SECONDS = 2.0
HEARTBEATS_PER_SECOND = 2 / HEARTBEAT_SECONDS
STEPS_PER_SECOND = 5.0
STEPS_PER_REPORT = 10
SERIES = ("loss", *(f"series_{number}" for number in range(1, 20)))
POINTS_PER_REPORT = STEPS_PER_REPORT * len(SERIES)
REPORT_SECONDS = STEPS_PER_REPORT / STEPS_PER_SECOND


class Drivers:
    """Simulates every launched attempt for about the duration of a job.

    Args:
        lasts: seconds of an attempt, on average.
    """

    def __init__(self, sender: Sender, ended: Queue[str], lasts: float) -> None:
        self._sender, self._ended, self._lasts = sender, ended, lasts
        self._random = random.Random(0)
        self.reporting = True
        """Whether they send metrics, beside heartbeats."""

    async def drive(self, submission_id: str, token: str) -> None:
        """Simulate one attempt from its first request to its last."""
        url = f"/worker/v1/runs/{submission_id}"

        async def send(kind: str, due: float, body: object) -> tuple[int, bytes]:
            return await self._sender.send(
                f"worker {kind}", due, "POST", f"{url}/{kind}", token, body
            )

        status, _ = await send("start", time.monotonic(), {})
        outcome = "succeeded"
        if status == 200:
            stop = asyncio.Event()
            reports = asyncio.ensure_future(self._report(send, stop))
            driver = asyncio.ensure_future(self._beat_as_driver(send, stop))
            outcome = await self._beat(send)
            stop.set()
            await asyncio.gather(reports, driver)
            await send("finish", time.monotonic(), {"outcome": outcome})
        self._ended.put(submission_id)

    async def _beat(self, send: Any) -> str:
        """Send heartbeats until the attempt ends or is to stop; return its outcome."""
        # Spread heartbeats and ends over time.
        end = time.monotonic() + self._lasts * self._random.uniform(0.5, 1.5)
        due = time.monotonic() + self._random.uniform(0, HEARTBEAT_SECONDS)
        beat = 0
        while due < end:
            await _until(due)
            progress = {
                "step": beat * 4,
                "total_steps": 1000,
                "epoch": beat / 10,
                "loss": 1 / (1 + beat),
            }
            status, content = await send("heartbeat", due, {"progress": progress})
            if status == 409:
                return "cancelled"
            desired = json.loads(content)["desired"] if status == 200 else "run"
            if desired != "run":
                return "cancelled" if desired == "cancel" else "paused"
            beat, due = beat + 1, due + HEARTBEAT_SECONDS
        return "succeeded"

    async def _beat_as_driver(self, send: Any, stop: asyncio.Event) -> None:
        async for due in self._every(HEARTBEAT_SECONDS, stop):
            await send("heartbeat", due, {"progress": {}})

    async def _report(self, send: Any, stop: asyncio.Event) -> None:
        step = 0
        async for due in self._every(REPORT_SECONDS, stop):
            values = {name: self._random.random() for name in SERIES}
            points = [
                {"step": step + i, "time": time.time(), "values": values}
                for i in range(STEPS_PER_REPORT)
            ]
            step += STEPS_PER_REPORT
            if self.reporting:
                await send("metrics", due, {"points": points})

    async def _every(self, seconds: float, stop: asyncio.Event) -> AsyncIterator[float]:
        """Yield each due time, beginning with a random one, until `stop` is set."""
        due = time.monotonic() + self._random.uniform(0, seconds)
        while True:
            try:
                await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                return
            except TimeoutError:
                yield due
                due += seconds


async def _until(due: float) -> None:
    if (wait := due - time.monotonic()) > 0:
        await asyncio.sleep(wait)


def drive(
    url: str,
    launched: Queue[tuple[str, str]],
    ended: Queue[str],
    lasts: float,
    questions: Connection,
) -> None:
    """Simulate drivers until the process is ended; each request, whether to send metrics, returns a `Tallies`."""
    freeze_garbage_collection()  # As the submitting process does.
    asyncio.run(_drive(url, launched, ended, lasts, questions))


async def _drive(
    url: str,
    launched: Queue[tuple[str, str]],
    ended: Queue[str],
    lasts: float,
    questions: Connection,
) -> None:
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    async with Sender(url, Tallies()) as sender:
        drivers = Drivers(sender, ended, lasts)

        def begin(submission_id: str, token: str) -> None:
            task = loop.create_task(drivers.drive(submission_id, token))
            running.add(task)
            task.add_done_callback(running.discard)

        def listen() -> None:
            while True:
                loop.call_soon_threadsafe(begin, *launched.get())

        def take(reporting: bool) -> None:
            drivers.reporting = reporting
            questions.send(sender.tallies.take())

        def answer() -> None:
            while True:
                loop.call_soon_threadsafe(take, questions.recv())

        threading.Thread(target=listen, daemon=True).start()
        threading.Thread(target=answer, daemon=True).start()
        await asyncio.Event().wait()
