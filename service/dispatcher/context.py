"""What the parts of one dispatcher share: its surroundings, its lease, and its way to submit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from service import credentials
from service.artifacts.storage import Storage
from service.db import leases
from service.db.leases import DISPATCHER_LEASE
from service.db.session import Database
from service.dispatcher.executor import Executor
from service.settings import Settings

Clock = Callable[[], datetime]

_STOP_AGAIN = timedelta(seconds=5)


class LeaseLost(Exception):
    """Another dispatcher is in charge; whatever this one was about to write is discarded."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def passed(since: datetime | None, now: datetime, interval: timedelta) -> bool:
    """Whether so long a time went by; also where the clock was set back by as much, or nothing was noted
    yet. Clocks of two machines may differ by less than that."""
    return since is None or not -interval < now - since < interval


@dataclass(frozen=True)
class Entrypoints:
    """Shell commands that Ray runs; `{job}`, `{attempt}` and `{dataset}` are filled in."""

    job: str = "python -m workers.driver --job {job} --attempt {attempt}"
    ingest: str = "python -m workers.ingest --dataset {dataset}"

    @classmethod
    def of_this_python(cls) -> Entrypoints:
        """With the interpreter that runs now: for a Ray on the same machine."""
        # `-P`: what lies in the folder that the command happens to run in is not imported.
        python = f"{shlex.quote(sys.executable)} -P"
        return cls(
            job=f"{python} -m workers.driver --job {{job}} --attempt {{attempt}}",
            ingest=f"{python} -m workers.ingest --dataset {{dataset}}",
        )


@dataclass
class DispatcherContext:
    """One dispatcher's surroundings."""

    settings: Settings
    database: Database
    storage: Storage
    executor: Executor
    clock: Clock
    holder: str
    entrypoints: Entrypoints
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of submissions that Ray may not have taken yet, by submission id."""
    renewed_at: datetime | None = None
    """When the lease was last taken or renewed by `take_lease`."""
    executor_answers: bool = True
    """Whether the executor answered when it was last asked for the cluster."""
    _stopped_at: dict[str, datetime] = field(default_factory=dict)

    @property
    def lease(self) -> timedelta:
        """After this long a silent attempt, or dispatcher, is taken to be gone."""
        return timedelta(seconds=self.settings.lease_seconds)

    @property
    def in_charge(self) -> bool:
        """Whether the lease was taken or renewed lately. `write` makes sure."""
        return not passed(self.renewed_at, self.clock(), self.lease)

    def take_lease(self) -> bool:
        """Become or stay the dispatcher in charge."""
        now = self.clock()
        if not passed(self.renewed_at, now, self.lease / 4):
            return True  # As far as is known; `write` makes sure.
        with self.database.write() as session:
            taken = leases.take_lease(session, DISPATCHER_LEASE, self.holder, now, self.lease)
        self.renewed_at = now if taken else None
        return taken

    def keep_lease(self) -> None:
        """Stay the dispatcher in charge, in the middle of work.

        Raises:
            LeaseLost: another dispatcher took over.
        """
        now = self.clock()
        if passed(self.renewed_at, now, self.lease / 4):
            with self.write():
                pass  # Which renews it.
            self.renewed_at = now

    def release_lease(self) -> None:
        """Let the next dispatcher begin at once."""
        self.renewed_at = None
        with self.database.write() as session:
            leases.release_lease(session, DISPATCHER_LEASE, self.holder, self.clock())

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that only the dispatcher in charge can commit; it renews the lease.

        Raises:
            LeaseLost: another dispatcher took over. Not when one only could have: work that takes longer
                than a lease must come to its end where nobody else is there to do it.
        """
        now = self.clock()
        with self.database.write() as session:
            if not leases.renew_lease(session, DISPATCHER_LEASE, self.holder, now + self.lease):
                self.renewed_at = None
                raise LeaseLost(f"{self.holder} lost the lease {DISPATCHER_LEASE!r}")
            yield session

    def stop(self, submission_id: str) -> None:
        """Have the executor end a submission; at most every few seconds."""
        now = self.clock()
        if passed(self._stopped_at.get(submission_id), now, _STOP_AGAIN):
            self._stopped_at[submission_id] = now
            self.executor.stop(submission_id)

    def forget(self, submission_id: str) -> None:
        """Forget a submission whose processes are gone."""
        self._stopped_at.pop(submission_id, None)

    def new_token(self, submission_id: str) -> str:
        """Make a submission's token and keep it until Ray has it; returns the hash to store."""
        token, hashed = credentials.new_token()
        self.tokens[submission_id] = token
        return hashed

    def submit(self, submission_id: str, command: str) -> None:
        """Hand a command to Ray with the token made for it. Not inside a transaction."""
        env = {
            "DASL_API_URL": self.settings.api_url,
            # So that each process of an attempt can be told from those of another.
            "DASL_SUBMISSION": submission_id,
            "DASL_LOG_FORMAT": self.settings.log_format,
            # What a driver printed last must not be lost in a buffer when it is killed.
            "PYTHONUNBUFFERED": "1",
        }
        self.executor.submit(submission_id, command, env, self.tokens[submission_id])
        del self.tokens[submission_id]
