"""A dispatcher with a database, a fake executor and a clock that the test advances."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from dasl_core.spec import versions
from service import ids, lifecycle, states
from service.datasets.ingests import repository as ingests
from service.db.models import (
    Attempt,
    Checkpoint,
    Dataset,
    Event,
    IngestRun,
    Job,
    Metric,
    Preparation,
    Preview,
    Run,
    Task,
    Token,
)
from service.db.session import Database
from service.dispatcher.context import Entrypoints
from service.dispatcher.executor import OnDemand
from service.dispatcher.loop import Dispatcher
from service.runs.endings import Ending, Retry
from service.settings import Settings
from service.states import DatasetState, Desired, JobStatus
from tests.support.clocks import something_happens
from tests.support.fake_executor import DRIVER, FakeExecutor
from tests.support.runs import submission_id

ENTRYPOINTS = Entrypoints(
    job=f"exec sh -c '{DRIVER}' {{owner}} {{attempt}}",
    **dict.fromkeys(
        ("ingest", "preview", "prepare", "model_run", "search"), f"exec sh -c '{DRIVER}' {{owner}}"
    ),
    demand="echo {bundles}",
)

WITHOUT_TOKEN = "tok_of_nobody"
"""The account of jobs that are added without a token."""
_UNFINALIZED = select(func.count()).where(Attempt.finished_at.is_not(None), ~Attempt.settled)


@dataclass
class World:
    """Environment of a dispatcher, and shorthands for what users, workers and time do.

    Attributes:
        began: time at which the clock starts.
        ahead: how far the test has advanced the clock.
    """

    settings: Settings
    database: Database
    executor: FakeExecutor
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    ahead: timedelta = timedelta()
    dispatcher: Dispatcher = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def now(self) -> datetime:
        return self.began + self.ahead

    def restart(
        self,
        holder: str = "first",
        on_demand: OnDemand | None = None,
        patience: float | None = None,
    ) -> Dispatcher:
        """Replace the dispatcher by a new one, which has no in-memory state."""
        self.dispatcher = Dispatcher(
            self.settings,
            self.database,
            self.executor,
            holder=holder,
            entrypoints=ENTRYPOINTS,
            clock=self.now,
            on_demand=on_demand,
            patience=patience,
            threads=1 if patience is None else 8,  # one: in their order
        )
        return self.dispatcher

    def tick(self, seconds: float = 2, *, times: int = 1) -> None:
        """Advance the clock and run each loop once; repeat the main loop if attempts were finalized."""
        for _ in range(times):
            self.main_round(seconds)
            before = self.num_unfinalized()
            for loop in self.dispatcher.background.values():
                loop.run_once()
            if before and self.num_unfinalized() < before:
                self.dispatcher.tick()

    def main_round(self, seconds: float) -> None:
        """Advance the clock and run the main loop alone, which takes two thirds of the time."""
        self.ahead += timedelta(seconds=seconds)
        if seconds > 3600:  # others use the cluster meanwhile
            something_happens(self.database, self.now())
        self.dispatcher.tick()

    def num_unfinalized(self) -> int:
        """Return the number of ended attempts that are not finalized."""
        with self.database.read() as session:
            return session.scalar(_UNFINALIZED) or 0

    def add_job(
        self,
        *,
        priority: int = 0,
        token_id: str | None = None,
        user_id: str | None = None,
        tenant: str = "default",
        preemptible: bool = False,
        **resources: Any,
    ) -> str:
        defaults = {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0}
        placement: dict[str, Any] = {
            "min_workers": None,
            "memory_gb_per_worker": None,
            "gpu_type": None,
            "node_labels": {},
            "same_node": False,
            "exclude_nodes": [],
        }
        limits = {"max_restarts": 3, "max_hours": 24.0}
        job = Job(
            id=ids.new_id("job"),
            tenant=tenant,
            name="a job",
            method="simclr",
            spec={},
            resolved={
                "resources": defaults | placement | limits | resources,
                "train": {"batch_size": 12, "micro_batches": 1},
            },
            priority=priority,
            preemptible=preemptible,
            tags={},
            dataset_id=self.dataset_id(),
            created_at=self.now(),
            token_id=token_id,
            account_id=user_id or token_id or WITHOUT_TOKEN,
            spec_version=versions.current(),
        )
        with self.database.write() as session:
            lifecycle.enqueue(session, job)
        return job.id

    def add_token(self, user_id: str | None = None, **quotas: int) -> str:
        token = Token(
            id=ids.new_id("tok"),
            tenant="default",
            name="a token",
            hash=ids.new_id("tok"),
            scopes=["submit"],
            user_id=user_id,
            created_at=self.now(),
            **quotas,
        )
        with self.database.write() as session:
            session.add(token)
        return token.id

    def dataset_id(self) -> str:
        """Return the id of a ready data set; add one if there is none."""
        with self.database.read() as session:
            dataset_id = session.scalars(select(Dataset.id).where(Dataset.state == "ready")).first()
        return dataset_id or self.add_dataset("ready")

    def add_dataset(self, state: str = "pending", tenant: str = "default") -> str:
        dataset = Dataset(
            id=ids.new_id("ds"),
            tenant=tenant,
            name=ids.new_id("ds"),
            uri="file:///nowhere",
            state=state,
            created_at=self.now(),
            ingest_requested_at=self.now(),
        )
        with self.database.write() as session:
            session.add(dataset)
        return dataset.id

    def end_ingest(self, dataset_id: str, number: int = 1) -> None:
        """Let an ingest run report that its data set is ready."""
        with self.database.write() as session:
            assert ingests.end_ingest(session, dataset_id, number, DatasetState.READY)

    def add_preview(self, dataset_id: str, tenant: str = "default") -> str:
        spec = {"spec": {}, "resolved": {}, "spec_version": 1}
        return self._add_task(
            Preview(id=ids.new_id("prev"), images=8, files=[], **spec), dataset_id, tenant
        )

    def add_preparation(self, dataset_id: str, tenant: str = "default") -> str:
        images = {"image_size": 32, "channels": 3, "image_cache": "exact"}
        return self._add_task(Preparation(id=ids.new_id("prep"), **images), dataset_id, tenant)

    def _add_task(self, task: Preview | Preparation, dataset_id: str, tenant: str) -> str:
        task.dataset_id, task.dataset_version = dataset_id, 1
        task.tenant, task.state, task.created_at = tenant, "queued", self.now()
        with self.database.write() as session:
            session.add(task)
        return task.id

    def preview(self, preview_id: str) -> Preview:
        with self.database.read() as session:
            return session.get_one(Preview, preview_id)

    def add_checkpoint(self, job_id: str, number: int, step: int, uri: str = "") -> str:
        checkpoint = Checkpoint(
            id=ids.new_id("ckpt"),
            job_id=job_id,
            attempt=number,
            step=step,
            epoch=1.0,
            uri=uri or f"file:///nowhere/{job_id}/{number}/{step}",
            files=[],
            size=0,
            metrics={},
            state="registered",
            final=False,
            created_at=self.now(),
        )
        with self.database.write() as session:
            session.add(checkpoint)
        return checkpoint.id

    def add_metric(self, job_id: str, number: int, step: int) -> None:
        """Report a loss."""
        with self.database.write() as session:
            session.add(
                Metric(job_id=job_id, attempt=number, name="loss", step=step, time=0.0, value=1.0)
            )

    def start_job(self, **options: Any) -> str:
        """Add a job, and let its driver start; see `add_job`."""
        job = self.add_job(**options)
        self.tick()
        self.worker_starts(job)
        return job

    def worker_starts(self, job_id: str, number: int = 1) -> None:
        """Mark the attempt as running, as the worker API does at a driver's first request."""
        with self.database.write() as session:
            lifecycle.mark_running(session, job_id, number)

    def end_job(self, job_id: str, outcome: states.AttemptOutcome) -> None:
        """Let the first attempt report how it ended, and its driver exit."""
        self.worker_finishes(job_id, outcome)
        self.executor.end(self.run_id(job_id), 0)

    def worker_sends_heartbeat(
        self, job_id: str, number: int = 1, progress: dict[str, Any] | None = None
    ) -> Desired:
        """Send a heartbeat, as the worker API handles it; return what the attempt is to do."""
        with self.database.write() as session:
            job, attempt = lifecycle.lock_live_attempt(session, job_id, number)
            lifecycle.record_heartbeat(session, job, attempt, progress or {})
            return lifecycle.desired_state(job, attempt)

    def worker_reports_placement(self, job_id: str, number: int = 1, **ranks: int) -> None:
        """Report the number of ranks on each node, as rank 0 does."""
        nodes = [{"id": id, "address": "", "ranks": [0] * count} for id, count in ranks.items()]
        with self.database.write() as session:
            data = {"attempt": number, "nodes": nodes}
            lifecycle.append_event(session, job_id, "placement", "", data)

    def worker_trains(self, job_id: str, seconds: float, number: int = 1) -> None:
        """Advance the clock while an attempt trains, with a round and a heartbeat every 100 seconds."""
        for second in range(0, int(seconds), 100):
            self.main_round(min(100, seconds - second))
            self.worker_sends_heartbeat(job_id, number, {"step": second})

    def worker_finishes(
        self,
        job_id: str,
        outcome: states.AttemptOutcome,
        number: int = 1,
        *,
        error: dict[str, Any] | None = None,
        retry: Retry = Retry.LIMITED,
    ) -> None:
        ending = Ending(outcome, error, retry)
        with self.database.write() as session:
            lifecycle.finish_attempt(session, job_id, number, ending)

    def cancel(self, job_id: str) -> None:
        with self.database.write() as session:
            lifecycle.request_cancel(session, job_id)

    def pause(self, job_id: str) -> None:
        with self.database.write() as session:
            lifecycle.request_pause(session, job_id)

    def resume(self, job_id: str) -> None:
        with self.database.write() as session:
            lifecycle.request_resume(session, job_id)

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def status(self, job_id: str) -> JobStatus:
        return JobStatus(self.job(job_id).status)

    def attempt(self, job_id: str, number: int = 1) -> Attempt:
        with self.database.read() as session:
            return session.get_one(Attempt, (job_id, number))

    def run_id(self, owner: str, number: int = 1) -> str:
        """Return the submission id of a job's attempt or a data set's ingest run."""
        return submission_id(self.database, owner, number)

    def ingest_run(self, dataset_id: str, number: int = 1) -> IngestRun:
        with self.database.read() as session:
            return session.get_one(IngestRun, (dataset_id, number))

    def dataset(self, dataset_id: str) -> Dataset:
        with self.database.read() as session:
            return session.get_one(Dataset, dataset_id)

    def events(self, job_id: str, type: str = "status") -> list[str]:
        with self.database.read() as session:
            query = select(Event.message).where(Event.job_id == job_id, Event.type == type)
            return list(session.scalars(query.order_by(Event.seq)))

    def log(self, job_id: str, number: int = 1) -> str:
        root = Path(self.settings.artifacts_uri.removeprefix("file://"))
        return (root / "jobs" / job_id / "attempts" / str(number) / "driver.log").read_text()


def failure(row: Job | Run | Task | Dataset) -> dict[str, Any]:
    """Return the error of a row, which must have one."""
    assert row.error is not None
    return row.error


@contextmanager
def running(world: World) -> Iterator[None]:
    """Run the loops of the dispatcher in a thread, and stop them at the end of the block."""
    stop = threading.Event()
    options = {"interval": 0.01}
    thread = threading.Thread(
        target=world.dispatcher.run, args=(stop,), kwargs=options, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
