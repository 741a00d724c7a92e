"""The dispatcher's process, with a simulated cluster.

The executor accepts a submission, passes the attempt's token to the process that simulates the drivers
(`drivers.py`), and learns from it when an attempt has ended. It is neither `tests.support.fake_executor` nor
`tests.support.stand_in`: fifty processes on two cores would be measured instead of the service. The
dispatcher and the database are real.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path

from service import log_records
from service.db.session import Database
from service.dispatcher.executor import LogPiece, Submission, SubmissionState
from service.dispatcher.loop import Dispatcher
from service.scheduling.nodes import Cluster, Node
from service.settings import Settings

NODES, CPUS_PER_NODE = 10, 5
_LINE = b"epoch 12/100 step 3456/100000 loss 1.2345 images/s 678.9\n"
_SECONDS_PER_LINE = 2.0


@dataclass
class _Driver:
    began: float
    ended: float | None = None


class FakeCluster:
    """See `service.dispatcher.executor.Executor`.

    Args:
        launched: receives (submission id, token) of each driver.
        ended: yields submission ids of drivers that have ended.
    """

    def __init__(self, launched: Queue[tuple[str, str]], ended: Queue[str]) -> None:
        self._launched, self._ended = launched, ended
        self._drivers: dict[str, _Driver] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        env: Mapping[str, str],
        token: str,
        avoid: Collection[str] = (),
    ) -> None:
        """Pass the attempt to the drivers' process."""
        if submission_id in self._drivers:
            return
        self._drivers[submission_id] = _Driver(time.monotonic())
        self._launched.put((submission_id, token))

    def status(self, submission_id: str) -> Submission | None:
        """Report the attempt as running until the drivers' process reports its end."""
        driver = self._drivers.get(submission_id)
        if driver is None:
            return None
        return Submission(
            SubmissionState.RUNNING if driver.ended is None else SubmissionState.SUCCEEDED
        )

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        """Return a line for every two seconds."""
        driver = self._drivers.get(submission_id)
        if driver is None:
            return LogPiece(b"", 0)
        until = time.monotonic() if driver.ended is None else driver.ended
        content = _LINE * int((until - driver.began) / _SECONDS_PER_LINE)
        return LogPiece(content[start : start + count], len(content))

    def stop(self, submission_id: str) -> None:
        """End the attempt at once."""
        driver = self._drivers.get(submission_id)
        if driver is not None and driver.ended is None:
            driver.ended = time.monotonic()

    def delete(self, submission_id: str) -> bool:
        """Forget an attempt that has ended."""
        driver = self._drivers.get(submission_id)
        if driver is not None and driver.ended is None:
            return False
        self._drivers.pop(submission_id, None)
        return True

    def cluster(self) -> Cluster:
        """Return machines for 50 jobs of one CPU."""
        used = sum(driver.ended is None for driver in list(self._drivers.values()))
        nodes = []
        for number in range(NODES):
            taken = min(CPUS_PER_NODE, max(0, used - number * CPUS_PER_NODE))
            nodes.append(Node(f"node-{number}", "127.0.0.1", CPUS_PER_NODE, 0, taken, 0))
        return Cluster(tuple(nodes))

    def _listen(self) -> None:
        while True:
            self.stop(self._ended.get())


class TimedDispatcher(Dispatcher):
    """A dispatcher that records the duration of each round."""

    rounds: list[float]

    def tick(self) -> None:
        """Run one round."""
        began = time.monotonic()
        super().tick()
        self.rounds.append(time.monotonic() - began)


def dispatch(
    settings: Settings,
    log: Path,
    launched: Queue[tuple[str, str]],
    ended: Queue[str],
    questions: Connection,
) -> None:
    """Run the dispatcher until SIGTERM; each request returns the rounds since the last one."""
    sys.stderr = log.open("w", buffering=1)
    log_records.configure("text", secrets=settings.secrets)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    database = Database(settings.database_url)
    dispatcher = TimedDispatcher(
        settings, database, FakeCluster(launched, ended), holder="benchmark"
    )
    dispatcher.rounds = []

    def answer() -> None:
        while questions.recv():
            rounds, dispatcher.rounds = dispatcher.rounds, []
            questions.send(rounds)

    threading.Thread(target=answer, daemon=True).start()
    dispatcher.run(stop)
    database.dispose()
