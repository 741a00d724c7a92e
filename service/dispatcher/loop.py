"""Main loop of the dispatcher: each `tick` checks all runs once and admits queued jobs.

Only the holder of the lease acts. A round checks existing runs before it starts new ones. After a
crash, the next round of any dispatcher recovers from the state in the database. No network call is made
inside a transaction.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from service import lifecycle
from service.artifacts.storage import Storage
from service.db.models import ClusterSnapshot
from service.db.session import Database
from service.dispatcher import repository
from service.dispatcher.adoption import Adoption
from service.dispatcher.autoscaler import AutoscalerDemand
from service.dispatcher.checks import ApiCheck, StoreCheck
from service.dispatcher.context import (
    Clock,
    DispatcherContext,
    Entrypoints,
    LeaseLost,
    Restarted,
    passed,
    utc_now,
)
from service.dispatcher.executor import Executor, ExecutorUnavailable, OnDemand
from service.dispatcher.finalizer import Finalizer
from service.dispatcher.garbage import Garbage
from service.dispatcher.isolation import Loop, Outage, run_isolated
from service.dispatcher.log_copier import LogCopier
from service.dispatcher.metric_thinner import MetricThinner
from service.dispatcher.rerun_policy import rerun_policies
from service.dispatcher.step_pool import Step, StepPool
from service.dispatcher.train_policy import TrainPolicy
from service.dispatcher.uploads import Uploads
from service.dispatcher.watcher import RunWatcher
from service.dispatcher.webhooks import WebhookDelivery
from service.runs.repository import RunView
from service.scheduling import autoscaling
from service.scheduling import repository as scheduling
from service.scheduling.admission import Decision, Queued, Running, decide, without_foreign
from service.scheduling.dispatcher_report import DispatcherReport, RayReport
from service.scheduling.foreign_use import ForeignUse
from service.scheduling.nodes import Cluster, Node, with_drains, without_drivers
from service.scheduling.preemption import Candidate, victims
from service.scheduling.repository import AttemptView
from service.scheduling.shortage_tracker import ShortageTracker
from service.scheduling.stored_decisions import to_store
from service.scheduling.window import ALWAYS, QueueWindow
from service.settings import Settings
from service.states import StopReason

logger = logging.getLogger(__name__)

# Short: an ended attempt holds its resources until its log is copied.
_LOG_INTERVAL_SECONDS = 0.5
_GARBAGE_INTERVAL_SECONDS = 1.0
_THINNING_INTERVAL_SECONDS = 1.0
_UPLOADS_INTERVAL_SECONDS = 0.5
_WEBHOOKS_INTERVAL_SECONDS = 0.5
_CHECK_INTERVAL_SECONDS = 5.0
# Factor of the intervals while there is no work.
_IDLE_PACE = 4.0
# Loops that may hang because the service that they check hangs.
_CHECKS = ("store", "api")
# Loops that may hang because the store hangs.
_USE_STORE = ("logs", "garbage", "uploads")
# How long a stopping dispatcher waits for each check.
_CHECK_PATIENCE_SECONDS = 3.0
_POLL_CLUSTER_EVERY = timedelta(seconds=2)
# Ray's head may share its cores with training, so it is polled less often than the queue.
_WATCH_EVERY = timedelta(seconds=1)
_STORE_DECISIONS_EVERY = timedelta(seconds=1)
# Bounds the duration of a transaction, during which other writers wait.
_WAITS_PER_TRANSACTION = 100
_MAX_RECORDED_WAITS = 100_000


class Dispatcher:
    """Claims queued jobs, runs their attempts through an executor, and finalizes them.

    Args:
        holder: the name of this dispatcher in the lease. If a lock on its home excludes other dispatchers, use
            the same name after a restart: it then need not wait until its earlier lease expires.
        on_demand: starts and ends the executor as needed; `None`: it always runs.
        patience: seconds that a round waits for each kind of requests, of which slow ones then go on; `None`: it waits
            for all.
        threads: most requests of a kind at the same time.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        executor: Executor,
        *,
        holder: str,
        entrypoints: Entrypoints | None = None,
        clock: Clock = utc_now,
        on_demand: OnDemand | None = None,
        patience: float | None = 1.0,
        threads: int = 8,
    ) -> None:
        self._context = DispatcherContext(
            settings=settings,
            database=database,
            storage=Storage(settings.artifacts_uri),
            executor=executor,
            clock=clock,
            holder=holder,
            entrypoints=entrypoints or Entrypoints(),
        )
        logs, adoption = LogCopier(self._context), Adoption(self._context)
        self._on_demand, self._logs = on_demand, logs
        self._rest: RayReport | None = None
        """What an executor on demand does while it does not run."""
        self._rest_saved_at: datetime | None = None
        self._has_work = True
        self._store = StoreCheck(self._context)
        self._api = ApiCheck(settings.api_url)
        self._train = TrainPolicy(self._context, logs, self._store, self._api)
        self._attempts = RunWatcher(self._context, self._train)
        self._reruns = [
            (policy, RunWatcher(self._context, policy)) for policy in rerun_policies(self._context)
        ]
        self._watches, self._starts, self._other_starts, finals, copies = (
            StepPool(patience, threads) for _ in range(5)
        )
        self._outage = Outage()
        garbage = Garbage(self._context, adoption)
        self._pools = (self._watches, self._starts, self._other_starts, finals, copies)
        finalizer = Finalizer(self._context, logs, adoption, finals, copies)
        rounds: dict[str, tuple[Callable[[], bool | None], float]] = {
            "logs": (finalizer.round, _LOG_INTERVAL_SECONDS),
            # A single thread for both, so that no log is copied while it is removed.
            "garbage": (lambda: logs.complete() and garbage.round(), _GARBAGE_INTERVAL_SECONDS),
            "uploads": (Uploads(self._context).round, _UPLOADS_INTERVAL_SECONDS),
            "webhooks": (WebhookDelivery(self._context).round, _WEBHOOKS_INTERVAL_SECONDS),
            "metrics": (MetricThinner(self._context).round, _THINNING_INTERVAL_SECONDS),
            "store": (self._store.round, _CHECK_INTERVAL_SECONDS),
            "api": (self._api.round, _CHECK_INTERVAL_SECONDS),
        }
        self.background = {
            name: Loop(round, interval, self._outage, lambda: 1.0 if self._has_work else _IDLE_PACE)
            for name, (round, interval) in rounds.items()
        }
        """Loops that may take long; each runs in its own thread."""
        self._loops = dict(self.background)
        self._started_at, self._announced = clock(), False
        self._cluster: Cluster | None = None
        self._cluster_polled_at: datetime | None = None
        self._watched_at: datetime | None = None
        self._recorded_waits: set[tuple[str, int, str]] = set()
        self._autoscaler = AutoscalerDemand(self._context) if settings.autoscale else None
        self._foreign_use, self._shortages = ForeignUse(), ShortageTracker()
        self._queue = QueueWindow(settings.fair_share_half_life)
        self._decisions: list[dict[str, Any]] | None = None
        self._decided_at: datetime | None = None
        self._decided_in = 0
        """The value of `terms` when they were stored."""
        self._shutting_down = self._saving = False
        self._asked_at, self._awake_at = time.monotonic(), float("-inf")

    def cluster_was_restarted(self, restarted: Restarted) -> None:
        """Treat earlier attempts that Ray does not know as lost immediately, because the cluster is new.

        Args:
            restarted: if the whole service was restarted, the jobs of the lost attempts are always retried. If
                only Ray was, the number of retries in a row is limited, because a job may have been the cause.
        """
        self._context.restarted = restarted
        self._cluster_polled_at = self._watched_at = None
        self._context.executor_answers = False  # Ray is starting: log no warning.
        if self._autoscaler is not None:
            self._autoscaler.forget()

    @property
    def sees_nodes(self) -> bool:
        """Whether the executor answered the last request, with at least one node."""
        return self._cluster is not None and bool(self._cluster.nodes)

    @property
    def in_charge(self) -> bool:
        """Whether this dispatcher holds the lease."""
        return self._context.in_charge

    def stuck(self) -> str | None:
        """Return which loop has made no progress for `DASL_STUCK_SECONDS`, as a sentence; otherwise `None`.

        Call it every few seconds. An outage of the database or of Ray does not stop a loop: its rounds fail and
        are repeated.
        """
        now, limit = time.monotonic(), self._context.settings.stuck_seconds
        # If this call is late, the process or its machine was suspended: restart the time of all loops.
        if now - self._asked_at >= limit / 2:
            self._awake_at = now
        self._asked_at = now
        for name, loop in list(self._loops.items()):
            at = loop.progressed_at
            # A restart would unblock neither a check nor the store, and `dasl serve` would end all trainings for it.
            if name in _CHECKS or at is None or (name in _USE_STORE and self._store.hangs):
                continue
            if (idle := now - max(at, self._awake_at)) >= limit:
                return f"The loop {name!r} of the dispatcher made no progress for {idle:.0f} s"
        return None

    def run(
        self,
        stop: threading.Event,
        *,
        interval: float = 0.25,
        save_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Run all loops until `stop` is set; then let the attempts save, and release the lease.

        Args:
            save_seconds: called once `stop` is set; returns how long running attempts may take to save a
                checkpoint and stop. 0: do not stop them.
        """
        background_stop = threading.Event()
        threads = {
            name: threading.Thread(
                target=loop.run, args=(background_stop,), name=f"dispatcher-{name}", daemon=True
            )
            for name, loop in self.background.items()
        }
        for thread in threads.values():
            thread.start()
        try:
            # While the executor runs or starts, look for new work at the full rate.
            self._loops["queue"] = Loop(
                self.tick,
                interval,
                self._outage,
                lambda: _IDLE_PACE if self._rest == RayReport(state="idle") else 1.0,
            )
            self._loops["queue"].run(stop)
            if (seconds := save_seconds()) > 0:
                self._save_attempts(seconds, interval)
        finally:
            background_stop.set()
            for name, thread in threads.items():
                # A hanging store must not delay the release of the lease.
                may_hang = name in _CHECKS or self._store.hangs
                thread.join(_CHECK_PATIENCE_SECONDS if may_hang else None)
            for pool in self._pools:
                pool.close(wait=not self._store.hangs)
        Loop(self._context.release_lease, interval, self._outage).run_once()

    def begin_shutdown(self) -> None:
        """From now on, start nothing, and request that attempts save a checkpoint and stop."""
        self._shutting_down = self._saving = True

    def _save_attempts(self, seconds: float, interval: float) -> None:
        self.begin_shutdown()
        deadline, over = time.monotonic() + seconds, threading.Event()

        def saving_round() -> bool:
            if not self._saving or time.monotonic() >= deadline:
                over.set()
                return False
            self.tick()
            return True

        Loop(saving_round, interval, self._outage).run(over)

    def tick(self) -> None:
        """Run one round of the main loop. Does nothing when another dispatcher is in charge."""
        if not self._context.take_lease():
            self._saving = False  # Another dispatcher watches the attempts.
            return
        try:
            self._round()
        except LeaseLost as lost:
            logger.warning("%s", lost)

    def _round(self) -> None:
        if not self._announced:
            self._announce_restart()
            self._announced = True
        if not self._executor_runs():
            self._saving = False  # Nothing runs.
            return
        if self._shutting_down:
            self._saving = self._train.request_checkpoints()
        if not self._poll_cluster() or not self._has_work:
            return
        now = self._context.clock()
        if passed(self._watched_at, now, _WATCH_EVERY):
            self._watched_at = now
            self._watch()
            if self._cluster is not None:
                self._train.request_checkpoints_on_drained(self._cluster)
        if self._shutting_down:
            return
        with self._context.database.read() as session:
            retries = repository.due_retries(session, now)
            # Do not start runs whose result could not be stored or reported.
            can_end = self._store.is_writable and self._api.answers
            due = [
                Step(owner, watcher.start, owner, watcher.starting)
                for policy, watcher in self._reruns
                for owner in (policy.due(session) if can_end else ())
            ]
        again = [Step(job, self._requeue, job, "queue this job again") for job in retries]
        self._run_steps(self._other_starts, [*again, *due])
        self._admit()

    def _requeue(self, job_id: str) -> None:
        with self._context.write() as session:
            lifecycle.requeue(session, job_id)

    def _executor_runs(self) -> bool:
        """Start or end an executor on demand, as is due; return whether the executor runs."""
        if self._on_demand is None:
            return True
        with self._context.database.read() as session:
            had_work, self._has_work = self._has_work, repository.has_work(session)
        if self._has_work and not had_work:
            self._cluster_polled_at = None  # Admit by current resources.
        report = self._on_demand.keep(needed=self._has_work or self._logs.is_pending)
        if report is None:
            if self._rest is not None:
                self._rest = self._cluster_polled_at = None  # The cluster is new.
            return True
        now = self._context.clock()
        if report != self._rest or passed(self._rest_saved_at, now, self._context.lease / 4):
            self._rest, self._rest_saved_at = report, now
            self._context.executor_answers, self._cluster = False, None
            self._shortages.reset()
            self._save_snapshot()
        return False

    def _watch(self) -> None:
        """Check all live runs, including runs of earlier dispatchers, but not those that are being started."""
        known = set(self._context.submitted)
        with self._context.database.read() as session:
            attempts = self._train.live(session)
            others = [
                (watcher, run) for policy, watcher in self._reruns for run in policy.live(session)
            ]
        live: list[tuple[RunWatcher[Any], RunView]] = [
            *((self._attempts, attempt) for attempt in attempts),
            *others,
        ]
        self._context.submitted -= known - {run.submission_id for _, run in live}
        demands = {attempt.submission_id: attempt.demand for attempt in attempts}
        self._foreign_use.update(demands, self._context.clock())
        steps = [
            Step(run.submission_id, watcher.watch, run, watcher.watching)
            for watcher, run in live
            if not (self._starts.is_busy(run.owner) or self._other_starts.is_busy(run.owner))
        ]
        self._run_steps(self._watches, steps)

    def _run_steps(self, pool: StepPool, steps: Sequence[Step]) -> None:
        """Run steps unless the executor does not answer."""
        if self._context.executor_answers and not pool.run(steps):
            self._cluster_polled_at = None
            self._poll_cluster()

    def _poll_cluster(self) -> bool:
        """Request the cluster's state if due; return whether the last request was answered."""
        now = self._context.clock()
        every = _POLL_CLUSTER_EVERY if self._has_work else self._context.lease / 4
        if not passed(self._cluster_polled_at, now, every):
            return self._context.executor_answers
        self._cluster_polled_at = now
        try:
            self._cluster = self._context.executor.cluster()
        except ExecutorUnavailable as error:
            if self._context.executor_answers:
                logger.warning("%s", error)
            self._context.executor_answers, self._cluster = False, None
        else:
            if not self._context.executor_answers:
                logger.info("Ray answers")
            self._context.executor_answers = True
        if not self.sees_nodes:
            self._shortages.reset()
            if self._autoscaler is not None:
                self._autoscaler.forget()
        self._save_snapshot()
        return self._context.executor_answers

    def _save_snapshot(self) -> None:
        """Save the cluster's state for the API, without nodes if the executor does not answer or does not run."""
        now, cluster = self._context.clock(), self._cluster or Cluster(())
        alive, report = self.sees_nodes, self._report(cluster)
        with self._context.write() as session:
            if self._rest is not None:
                # A new job can use these nodes once Ray has started again.
                cluster = scheduling.last_cluster(session)
            scheduling.save_snapshot(
                session,
                ClusterSnapshot(
                    at=now,
                    alive=alive,
                    nodes=[scheduling.stored_node(node) for node in cluster.nodes],
                    total_cpus=cluster.total_cpus,
                    total_gpus=cluster.total_gpus,
                    used_cpus=cluster.used_cpus,
                    used_gpus=cluster.used_gpus,
                    dispatcher=report.model_dump(mode="json"),
                ),
            )

    def _report(self, cluster: Cluster) -> DispatcherReport:
        memory = cluster.head_memory
        return DispatcherReport(
            started_at=self._started_at,
            ray_version=cluster.version,
            ray_tested=cluster.tested,
            ray=self._rest,
            head_memory=memory and memory.used / memory.total,
            failed_rounds={name: loop.failed_rounds for name, loop in self._loops.items()},
            store=self._store.report,
            api_answers=self._api.answers,
        )

    def _announce_restart(self) -> None:
        """Add an event to the job of each attempt that an earlier dispatcher started."""
        with self._context.database.read() as session:
            attempts = scheduling.live_attempts(session)
        for attempt in attempts:
            # Later ones are attempts of this dispatcher.
            if attempt.created_at < self._started_at:
                run_isolated(self._announce_to, attempt, "tell this job of the restart")

    def _announce_to(self, attempt: AttemptView) -> None:
        what = {"service": "The service", "ray": "Ray", None: "The dispatcher"}[
            self._context.restarted
        ]
        message = f"{what} was restarted while attempt {attempt.number} was running"
        data = {"attempt": attempt.number, "restarted_at": self._started_at.isoformat()}
        with self._context.write() as session:
            lifecycle.append_event(session, attempt.job_id, "service-restarted", message, data)

    def _admit(self) -> None:
        """Start admitted jobs, and record why the others wait."""
        cluster = self._cluster
        if cluster is None or not cluster.nodes or not self._context.executor_answers:
            return
        now = self._context.clock()
        with self._context.database.read() as session:
            taken = scheduling.resources_in_use(session, now)
            queue = self._queue.read(session, taken, now)
            if not queue:
                self._show_demand(cluster, [], [])
                return
            cluster = with_drains(cluster, scheduling.drained(session))
            self._context.without_drivers = without_drivers(cluster.nodes)
            candidates = scheduling.candidates(session, taken)
        foreign = self._foreign_use.by_node(cluster.nodes, taken)
        decisions = decide(
            cluster,
            taken,
            queue,
            now,
            foreign,
            lacking=self._shortages.persistent(now),
            is_writable=self._store.is_writable,
            api_answers=self._api.answers,
        )
        self._shortages.update(decisions, now)
        starting = self._attempts.starting
        starts = [
            Step(job.job_id, partial(self._attempts.start, admitted=job), job.job_id, starting)
            for job in (decision.job for decision in decisions if decision.starts)
        ]
        self._run_steps(self._starts, starts)
        self._store_decisions(decisions[:ALWAYS], now)
        nodes = without_foreign(cluster, foreign)
        self._preempt(nodes, taken, candidates, decisions, now)
        self._record_waits([decision for decision in decisions if not decision.starts])
        self._show_demand(cluster, taken, decisions)

    def _store_decisions(self, decisions: Sequence[Decision], now: datetime) -> None:
        """Store the decisions on the first jobs for the API, if they changed; at most once a second."""
        stored = to_store(decisions)
        # Another dispatcher may have stored others between two terms.
        stored_last = self._decisions if self._decided_in == self._context.terms else None
        if stored == stored_last or not passed(self._decided_at, now, _STORE_DECISIONS_EVERY):
            return
        with self._context.write() as session:
            scheduling.save_decisions(session, stored)
        self._decisions, self._decided_at = stored, now
        self._decided_in = self._context.terms

    def _show_demand(
        self, cluster: Cluster, taken: Sequence[Running], decisions: Sequence[Decision]
    ) -> None:
        # Jobs that wait for the store or the API may lack nodes as well.
        unknown = any(decision.waits_for in ("store", "api") for decision in decisions)
        if self._autoscaler is not None and not unknown:
            running = [holding.demand for holding in taken]
            running += [decision.job.demand for decision in decisions if decision.starts]
            self._autoscaler.show(cluster, running, autoscaling.waiting_demands(decisions))

    def _preempt(
        self,
        nodes: Sequence[Node],
        taken: Sequence[Running],
        candidates: Sequence[Candidate],
        decisions: Sequence[Decision],
        now: datetime,
    ) -> None:
        """Preempt running jobs for the first job with a reservation that fits then."""
        reserved = [decision.job for decision in decisions if decision.may_preempt]
        if not reserved:
            return
        preemptible = {candidate.job_id for candidate in candidates}
        # Jobs that end now are stopping; their room already belongs to a reserved job.
        staying = [
            holding
            for holding in taken
            if holding.ends_by > now and holding.job_id not in preemptible
        ]
        for decision in decisions:
            held = decision.job.demand if decision.starts else decision.keeps
            if held is not None:
                staying.append(Running(held, now + decision.job.max_runtime))
        mode = self._context.settings.preemption
        for job in reserved:
            preempted = victims(nodes, staying, candidates, job, now, mode)
            if preempted:
                request = partial(self._request_room, preempted)
                run_isolated(request, job, "make room for this job")
                return
            # Later jobs must not use the room that is kept for this one.
            staying.append(Running(job.demand, now + job.max_runtime))

    def _request_room(self, preempted: Sequence[Candidate], job: Queued) -> None:
        """Request that attempts save a checkpoint and stop, to make room for a job."""
        # The job may belong to another tenant, so do not name it.
        why = f"A job of higher rank needs its room (priority {job.priority})"
        reason = StopReason.PREEMPTED
        with self._context.write() as session:
            for one in preempted:
                lifecycle.request_stop(session, one.job_id, one.attempt, reason, why)

    def _record_waits(self, waiting: list[Decision]) -> None:
        """Add an event with the reason to each waiting job, once per reason and attempt."""
        waits = {
            (decision.job.job_id, decision.job.attempt + 1, str(decision.waits_for)): decision
            for decision in waiting
        }
        if len(self._recorded_waits) > _MAX_RECORDED_WAITS:
            self._recorded_waits.clear()
        new = [key for key in waits if key not in self._recorded_waits][:_WAITS_PER_TRANSACTION]
        if not new:
            return
        with self._context.database.read() as session:
            stored = repository.waiting_events(session, {job_id for job_id, _, _ in new})
        missing = [key for key in new if key not in stored]
        if missing:
            with self._context.write() as session:
                free = repository.lock_free(session, {job_id for job_id, _, _ in missing})
                new = [key for key in new if key in stored or key[0] in free]
                for key in missing:
                    job_id, attempt, waits_for = key
                    if job_id in free:
                        data = {"attempt": attempt, "for": waits_for}
                        lifecycle.append_event(session, job_id, "waiting", waits[key].message, data)
        self._recorded_waits.update(new)
