"""State shared within one dispatcher: its dependencies, its lease, and submission to Ray."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy.orm import Session

from service.artifacts.storage import Storage
from service.db import leases
from service.db.leases import DISPATCHER_LEASE
from service.db.session import AWAY, Database, limit_lock_waits
from service.dispatcher.executor import Executor, ExecutorUnavailable
from service.settings import Settings

Clock = Callable[[], datetime]

_LOCK_SECONDS = 0.5
_STOP_AGAIN = timedelta(seconds=5)
# A store that fails fast delays nothing, and may only refuse one file.
_LONG_SECONDS = 1.0
_STORE_PAUSE = timedelta(seconds=30)


class LeaseLost(Exception):
    """Another dispatcher is in charge; the pending write is discarded."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def passed(since: datetime | None, now: datetime, interval: timedelta) -> bool:
    """Whether at least `interval` lies between `since` and `now`.

    Also true if the clock was set back by at least `interval`, or if `since` is `None`. The clocks of two
    machines may differ by less than `interval`.
    """
    return since is None or not -interval < now - since < interval


Restarted = Literal["service", "ray"]
"""What was restarted, and made Ray lose all submissions: the whole service, or only Ray."""


@dataclass(frozen=True)
class Entrypoints:
    """Shell commands that Ray runs.

    `{run}`, `{owner}` and `{attempt}` are filled in with the submission id, the id of the job, data set or task, and the
    number; in `demand`, only `{bundles}`.
    """

    job: str = "python -m workers.driver --run {run} --job {owner} --attempt {attempt}"
    ingest: str = "python -m workers.memory_limit ingest --run {run} --dataset {owner}"
    preview: str = "python -m workers.memory_limit preview --run {run} --preview {owner}"
    prepare: str = "python -m workers.memory_limit prepare --run {run} --preparation {owner}"
    model_run: str = "python -m workers.memory_limit model_run --run {run} --model-run {owner}"
    search: str = "python -m workers.memory_limit search --run {run} --search {owner}"
    demand: str = "python -m workers.demand --bundles {bundles}"

    @classmethod
    def for_local_python(cls) -> Entrypoints:
        """Build commands that use this Python interpreter, for a Ray on the same machine."""
        # `-P`: never import from the working folder.
        python = f"{shlex.quote(sys.executable)} -P"
        return cls(
            **{name: command.replace("python", python, 1) for name, command in vars(cls()).items()}
        )


@dataclass
class DispatcherContext:
    """Dependencies and shared state of one dispatcher."""

    settings: Settings
    database: Database
    storage: Storage
    executor: Executor
    clock: Clock
    holder: str
    entrypoints: Entrypoints
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of submissions that Ray may not have accepted yet, by submission id."""
    submitted: set[str] = field(default_factory=set)
    """Ids of the live runs that this dispatcher submitted, or tried to."""
    demand_programs: set[str] = field(default_factory=set)
    """Submissions with a request to Ray's autoscaler, of which Ray may still have a record."""
    renewed_at: datetime | None = None
    """When the lease was last taken or renewed by `take_lease`."""
    terms: int = 0
    """How often this dispatcher took the lease, counting every time that it was lost or expired before."""
    follows_crash: bool = False
    """Whether the previous dispatcher was killed, that is, did not release the lease."""
    restarted: Restarted | None = None
    """Set if Ray has lost all submissions of earlier dispatchers."""
    without_drivers: frozenset[str] = frozenset()
    """Ids of the nodes that run no drivers of attempts: the head, whose memory must not grow with the number of
    attempts, and drained ones; empty if there is no other node."""
    executor_answers: bool = True
    """Whether the executor answered the last request for the cluster."""
    _stopped_at: dict[str, datetime] = field(default_factory=dict)
    _store_failed_at: datetime | None = None

    @property
    def lease(self) -> timedelta:
        """How long an attempt or a dispatcher may be silent before it counts as dead."""
        return timedelta(seconds=self.settings.lease_seconds)

    @property
    def in_charge(self) -> bool:
        """Whether the lease was taken or renewed recently. Only `write` verifies it."""
        return not passed(self.renewed_at, self.clock(), self.lease)

    def take_lease(self) -> bool:
        """Take the lease, or renew it when due; return whether this dispatcher is in charge."""
        now = self.clock()
        if not passed(self.renewed_at, now, self.lease / 4):
            return True  # `write` verifies it.
        continues = self.in_charge
        with self.database.write() as session:
            if self.terms == 0:
                self.follows_crash = leases.was_abandoned(session, DISPATCHER_LEASE)
            taken = leases.take_lease(session, DISPATCHER_LEASE, self.holder, self.lease)
        if taken and not continues:
            self.terms += 1
        self.renewed_at = now if taken else None
        return taken

    def release_lease(self) -> None:
        """Release the lease, so that the next dispatcher can start at once."""
        self.renewed_at = None
        with self.database.write() as session:
            leases.release_lease(session, DISPATCHER_LEASE, self.holder)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that only the dispatcher in charge can commit; it renews the lease.

        Raises:
            LeaseLost: another dispatcher took over. An expired lease that no other dispatcher took is
                renewed, so that work that outlasts a lease can finish.
        """
        with self.database.write() as session:
            if not leases.renew_lease(session, DISPATCHER_LEASE, self.holder, self.lease):
                self.renewed_at = None
                raise LeaseLost(f"{self.holder} lost the lease {DISPATCHER_LEASE!r}")
            # The lease's row is locked now, for which the other loops wait.
            limit_lock_waits(session, _LOCK_SECONDS)
            yield session

    @property
    def store_is_away(self) -> bool:
        """Whether the artifact store failed after a long wait within the last 30 s, so that another try would wait again."""
        failed_at = self._store_failed_at
        return failed_at is not None and not passed(failed_at, self.clock(), _STORE_PAUSE)

    @contextmanager
    def watch_store(self) -> Iterator[None]:
        """Record for all loops whether the artifact store fails in this block after a long wait."""
        began = time.monotonic()
        try:
            yield
        except (LeaseLost, ExecutorUnavailable, *AWAY):
            raise
        except Exception:
            if time.monotonic() - began >= _LONG_SECONDS:
                self._store_failed_at = self.clock()
            raise
        self._store_failed_at = None

    def stop(self, submission_id: str) -> None:
        """Ask the executor to end a submission; at most once every few seconds."""
        now = self.clock()
        if passed(self._stopped_at.get(submission_id), now, _STOP_AGAIN):
            self._stopped_at[submission_id] = now
            self.executor.stop(submission_id)

    def forget(self, submission_id: str) -> None:
        """Forget a submission whose processes have ended."""
        self._stopped_at.pop(submission_id, None)

    def submit(self, submission_id: str, command: str, avoid: Collection[str] = ()) -> None:
        """Submit a command to Ray with its token, for a node that is none of `avoid`.

        Must not be called inside a transaction.
        """
        env = {
            "DASL_API_URL": self.settings.api_url,
            # Identifies the processes of this attempt.
            "DASL_SUBMISSION": submission_id,
            "DASL_LOG_FORMAT": self.settings.log_format,
            # A driver's last output must not be lost in a buffer when it is killed.
            "PYTHONUNBUFFERED": "1",
        }
        self.executor.submit(submission_id, command, env, self.tokens[submission_id], avoid)
        del self.tokens[submission_id]
