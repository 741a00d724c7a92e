"""The metrics for Prometheus.

Metrics of jobs and cluster are read from the database at each scrape, so that all API processes report the same.
Only requests are counted in this process.
"""

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from service import ids
from service.db import leases
from service.db.leases import DISPATCHER_LEASE
from service.db.models import ClusterSnapshot
from service.observability import repository
from service.observability.repository import AttemptEnd, AttemptStart
from service.observability.tenants import TenantUse, read_tenants
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.states import LIVE_ATTEMPT, TERMINAL, AttemptState, DatasetState, JobStatus
from service.storage.clock import is_silent

_LATENCY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WAIT_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)

REASONS = frozenset(
    {
        "attempt-lost",
        "DivergedError",
        "driver-ended",
        "hang",
        "max-hours",
        "no-room",
        "node-died",
        "out-of-memory",
        "rank-died",
        "controller-died",
        "reports-undelivered",
        "start-timeout",
        "storage-full",
        "store-unavailable",
        "submission-refused",
        "ValueError",
    }
)
"""Types of errors with a separate label. Others count as `other`, because workers choose their names."""


class ProcessMetrics:
    """Metrics of this process: requests, memory, CPU time, open files."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.latency = Histogram(
            "dasl_http_request_duration_seconds",
            "Time until an answer begins; the worker API's and live streams' too.",
            ["route", "method", "status"],
            buckets=_LATENCY_SECONDS,
            registry=self.registry,
        )


_Event = TypeVar("_Event", AttemptStart, AttemptEnd)
# Rows become visible some time after the time that they have: their transaction ends, and clocks differ.
_LATE = timedelta(minutes=5)


class AttemptCounts:
    """Counters of the attempts that began and ended since this process started, and of how long their jobs waited.

    Each update reads what is new, because the table grows without bound. Prometheus expects that a counter begins again
    with its process; the increases are those of all API processes.
    """

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._begun: dict[tuple[str, int], datetime] = {}
        self._ended: dict[tuple[str, int], datetime] = {}
        self._waits = [0] * (len(_WAIT_SECONDS) + 1)
        self._waited = 0.0
        self.restarts = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def update(self, session: Session) -> None:
        """Count the attempts that began or ended since the last update."""
        for begun in self._new(self._begun, partial(repository.begun_attempts, session)):
            if begun.number > 1:
                self.restarts += 1
                continue
            seconds = max(0.0, (begun.at - ids.created_at(begun.job_id)).total_seconds())
            self._waits[bisect_left(_WAIT_SECONDS, seconds)] += 1
            self._waited += seconds
        for ended in self._new(self._ended, partial(repository.ended_attempts, session)):
            error = ended.error_type
            reason = "none" if error is None else error if error in REASONS else "other"
            self.outcomes[ended.state, reason] += 1

    def _new(
        self, seen: dict[tuple[str, int], datetime], read: Callable[[datetime], Sequence[_Event]]
    ) -> Iterator[_Event]:
        # A time ahead of this clock, from one that has jumped, must not hide what comes after it.
        newest = min(datetime.now(UTC), max(seen.values(), default=self._started))
        since = max(self._started, newest - _LATE)
        for key in [key for key, at in seen.items() if at < since]:
            del seen[key]
        for event in read(since):
            if (event.job_id, event.number) not in seen:
                seen[event.job_id, event.number] = event.at
                yield event

    def waits(self) -> Metric:
        """Return the histogram of waits; its buckets are cumulative."""
        bounds = [*map(str, map(float, _WAIT_SECONDS)), "+Inf"]
        below = [sum(self._waits[: index + 1]) for index in range(len(bounds))]
        return HistogramMetricFamily(
            "dasl_queue_wait_seconds",
            "From a job's submission to the start of its first attempt.",
            buckets=list(zip(bounds, below, strict=True)),
            sum_value=self._waited,
        )


def stored_metrics(session: Session, counts: AttemptCounts, *, names_tenants: bool) -> list[Metric]:
    """Read the metrics that the database has, those by tenant if `names_tenants`."""
    now, cluster = datetime.now(UTC), scheduling.snapshot(session)
    return [
        *_job_metrics(session, counts, now),
        *_attempt_metrics(session, counts, now),
        *_cluster_metrics(session, cluster, now),
        *_dispatcher_metrics(cluster, now),
        *_queue_metrics(session, now),
        *_dataset_metrics(session),
        *(_tenant_metrics(read_tenants(session)) if names_tenants else ()),
    ]


class Scrape(Collector):
    """All metrics of one scrape.

    Args:
        up: whether each component works; unknown ones are left out.
        stored: see `stored_metrics`; empty if the database cannot be read.
    """

    def __init__(
        self,
        version: str,
        process: ProcessMetrics,
        up: Mapping[str, bool],
        stored: Sequence[Metric],
    ) -> None:
        self._version, self._process, self._up, self._stored = version, process, up, stored

    def collect(self) -> Iterator[Metric]:
        yield from self._process.registry.collect()
        build = {"version": self._version, "python": platform.python_version()}
        yield InfoMetricFamily("dasl_build", "Versions of this process.", value=build)
        yield _gauges("dasl_up", "1: it works, 0: it does not.", "component", self._up)
        yield from self._stored


def _job_metrics(session: Session, counts: AttemptCounts, now: datetime) -> Iterator[Metric]:
    live = repository.jobs_by_status(session)
    jobs = {str(status): live.get(status, 0) for status in JobStatus if status not in TERMINAL}
    yield _gauges("dasl_jobs", "Jobs that have not ended, by status.", "status", jobs)
    counts.update(session)
    yield counts.waits()


def _attempt_metrics(session: Session, counts: AttemptCounts, now: datetime) -> Iterator[Metric]:
    attempts = repository.attempts_by_state(session)
    live = {str(name): attempts.get(name, 0) for name in sorted(LIVE_ATTEMPT)}
    yield _gauges("dasl_live_attempts", "Attempts that have not ended.", "state", live)
    ended = CounterMetricFamily(
        "dasl_attempts",
        "Attempts that have ended, by outcome and type of the error.",
        labels=["outcome", "reason"],
    )
    # Emit each series from the start, so that its first increase is visible.
    outcomes = {(str(name), "none"): 0 for name in set(AttemptState) - LIVE_ATTEMPT}
    for failure in (AttemptState.FAILED, AttemptState.LOST):
        outcomes |= {(str(failure), reason): 0 for reason in (*REASONS, "other")}
    for labels, count in sorted({**outcomes, **counts.outcomes}.items()):
        ended.add_metric(labels, count)
    yield ended
    yield CounterMetricFamily(
        "dasl_restarts",
        "Attempts after the first of their job: retries and resumes.",
        value=counts.restarts,
    )
    yield _gauge(
        "dasl_attempt_start_age_seconds",
        "Age of the oldest live attempt that has not reported; 0 if all have.",
        _age(now, repository.oldest_start(session)),
    )
    yield _gauge(
        "dasl_heartbeat_age_seconds",
        "Age of the oldest last heartbeat among live attempts, or of one's start before its first.",
        _age(now, repository.oldest_heartbeat(session)),
    )


def _cluster_metrics(
    session: Session, cluster: ClusterSnapshot | None, now: datetime
) -> Iterator[Metric]:
    lease_left = leases.time_left(session, DISPATCHER_LEASE)
    if lease_left is not None:
        help = "Time left of the dispatcher's lease; negative: time without a dispatcher."
        yield _gauge("dasl_dispatcher_lease_seconds", help, lease_left.total_seconds())
    if cluster is None:
        return
    allocated = [holding.demand for holding in scheduling.resources_in_use(session, now)]
    help = "Age of the dispatcher's last snapshot of Ray."
    yield _gauge("dasl_cluster_snapshot_age_seconds", help, _age(now, cluster.at))
    for name, help, value in (
        ("nodes", "Nodes that are alive.", len(cluster.nodes) if cluster.alive else 0),
        ("cpus", "CPUs that Ray offers.", cluster.total_cpus),
        ("cpus_allocated", "CPUs allocated to jobs.", sum(d.cpus for d in allocated)),
        ("cpus_used", "CPUs that Ray has placed workers on.", cluster.used_cpus),
        ("gpus", "GPUs that Ray offers.", cluster.total_gpus),
        ("gpus_allocated", "GPUs allocated to jobs.", sum(d.gpus for d in allocated)),
        ("gpus_used", "GPUs that Ray has placed workers on.", cluster.used_gpus),
    ):
        yield _gauge(f"dasl_cluster_{name}", help, value)
    report = DispatcherReport.from_snapshot(cluster)
    if report is not None and report.head_memory is not None:
        help = "Share of the memory of Ray's head that is in use."
        yield _gauge("dasl_cluster_head_memory_ratio", help, report.head_memory)


def _dispatcher_metrics(cluster: ClusterSnapshot | None, now: datetime) -> Iterator[Metric]:
    report = DispatcherReport.from_snapshot(cluster)
    if report is None:
        return
    help = "When the dispatcher started, in seconds since 1970."
    yield _gauge("dasl_dispatcher_start_time_seconds", help, report.started_at.timestamp())
    failed = CounterMetricFamily(
        "dasl_dispatcher_failed_rounds",
        "Rounds of the dispatcher that failed since its start, not because the database was away.",
        labels=["loop"],
    )
    for loop, count in sorted(report.failed_rounds.items()):
        failed.add_metric([loop], count)
    yield failed
    if report.ray_version is not None:
        yield InfoMetricFamily("dasl_ray", "Version of Ray.", value={"version": report.ray_version})
        help = "1: DASL is tested with this version of Ray, 0: it is not."
        yield _gauge("dasl_ray_tested", help, bool(report.ray_tested))
    store = report.store
    if store is None:
        return
    help = "1: the dispatcher can write to the artifact store, 0: it cannot."
    yield _gauge("dasl_artifact_store_writable", help, store.problem is None)
    help = "Time since the dispatcher last checked the artifact store."
    yield _gauge("dasl_artifact_store_check_age_seconds", help, _age(now, store.checked_at))
    stored = {"checkpoints": store.checkpoint_bytes, "artifacts": store.artifact_bytes}
    help = "Size of the files in the artifact store, as far as the database knows them."
    yield _gauges("dasl_artifact_store_used_bytes", help, "kind", stored)
    if store.free_bytes is not None:
        help = "Free space of the artifact store, if it is a local folder."
        yield _gauge("dasl_artifact_store_free_bytes", help, store.free_bytes)


def _queue_metrics(session: Session, now: datetime) -> Iterator[Metric]:
    since = repository.oldest_waits(session)
    # Sweeps rest with everything else; that is no backlog.
    if is_silent(session, now):
        since["sweeps"] = None
    help = "How long the oldest item of each queue of the dispatcher has waited; 0 if none waits."
    ages = {name: _age(now, at) for name, at in since.items()}
    yield _gauges("dasl_oldest_wait_seconds", help, "queue", ages)
    help = "Webhooks that are disabled, by a person or because they failed."
    yield _gauge("dasl_webhooks_disabled", help, repository.disabled_webhooks(session))


def _dataset_metrics(session: Session) -> Iterator[Metric]:
    counts = repository.datasets_by_state(session)
    datasets = {str(name): counts.get(name, 0) for name in DatasetState}
    help = "Data sets in each state; pending: the ingest has not begun."
    yield _gauges("dasl_datasets", help, "state", datasets)
    yield _gauge(
        "dasl_dataset_images",
        "Images of all data sets that are ready.",
        repository.dataset_images(session),
    )


def _tenant_metrics(use: TenantUse) -> Iterator[Metric]:
    for name, help, values in (
        ("dasl_tenant_running_jobs", "Jobs with a live attempt, by tenant.", use.running),
        ("dasl_tenant_queued_jobs", "Jobs in the queue, by tenant.", use.queued),
        ("dasl_tenant_gpus", "GPUs of live attempts, by tenant.", use.gpus),
    ):
        yield _gauges(name, help, "tenant", values)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _age(now: datetime, then: datetime | None) -> float:
    return max(0.0, (now - then).total_seconds()) if then is not None else 0.0
