"""Admission: which queued jobs start now, as a pure function of cluster, running jobs and queue.

Order. Jobs start in the order of the queue, each with all its workers at once.

Reservations. The first job that does not fit gets a reservation: the earliest time at which it is certain to fit,
as every running job ends within its `resources.max_hours`. Later jobs are backfilled if they fit now and do not
delay the reservation: they end before it, or they leave enough room for the reserved job. A later job that does not
fit gets another reservation if no job with a reservation competes with it: they have no usable node in common, or
only one of them needs GPUs and the empty cluster has room for both. Otherwise a job for one kind of node would wait
behind a backlog of lower rank for another kind. Such a reservation binds only the jobs behind it, so its time is a
promise only if no job that waits before it may use its nodes.

Other programs. Resources that other programs on the same Ray use are not available. Jobs that only lack those wait
without a reservation, because the end of other programs is unknown.

Nodes. A job starts on the nodes that its `resources` allow and that are not drained. It avoids the nodes where its
last attempt failed before its first step, if it fits on others; for some minutes it waits for others that are in
use. An elastic job that has run before starts with fewer workers if the cluster has been too small for some minutes,
or because nodes are drained: with the most workers that fit and divide its batch. Until then, room for these workers
is kept. It never shrinks only because other jobs occupy the nodes.

Jobs that would not fit on the empty cluster, and jobs that a quota of their token or tenant holds back, are skipped
and get no reservation.

Quotas. The first waiting job of a token or tenant also has a reservation within its quota: later jobs of that owner
do not delay the time from which the quota allows it. Jobs of others are not affected.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

from service.scheduling import packing
from service.scheduling.automatic import NOTHING, Automatic, choose, has_gpus
from service.scheduling.nodes import Cluster, Node, NodeChoice, without_drivers
from service.scheduling.occupancy import Occupancy, Placement
from service.scheduling.packing import Demand, Room
from service.scheduling.quota import NO_QUOTA, Owner, Quota, QuotaReservation, owners
from service.scheduling.shortages import too_few_machines, too_little_room
from service.wire.cluster import WaitsFor


@dataclass(frozen=True)
class Running:
    """A job that holds resources."""

    demand: Demand
    ends_by: datetime
    """The latest time at which it ends; not in the past."""
    account_id: str | None = None
    """The user or token whose quota it uses; `None` if no quota."""
    placement: Placement | None = None
    """The nodes of its workers; `None` if unknown."""
    tenant: str | None = None
    """The tenant whose quota it uses; `None` if no quota."""
    job_id: str | None = None
    """`None` for an attempt that has ended."""
    began_at: datetime | None = None
    """When its attempt began; `None` if it has none or it has ended."""


@dataclass(frozen=True)
class Queued:
    """A job that waits for resources."""

    job_id: str
    attempt: int
    """Number of its last attempt; 0 if it never ran."""
    demand: Demand
    """In decisions, the numbers of `automatic` are filled in."""
    max_runtime: timedelta
    """The longest time that it may run."""
    account_id: str | None = None
    """The user of its token, or the token if it has no user."""
    quota: Quota = NO_QUOTA
    """The quota of its token, for all jobs of the account."""
    smaller: tuple[Demand, ...] = ()
    """Smaller demands that an elastic job accepts if the cluster is too small, the largest first."""
    tenant: str | None = None
    tenant_quota: Quota = NO_QUOTA
    priority: int = 0
    preemptible: bool = False
    avoided: frozenset[str] = frozenset()
    """Ids of the nodes where its last attempt failed immediately; not used if the job fits on others."""
    avoids_until: datetime | None = None
    """Until then it waits for other nodes even if they are in use."""
    automatic: Automatic = NOTHING
    """Numbers of its workers that admission chooses before the first attempt."""

    @property
    def may_use_gpus(self) -> bool:
        """Whether its quotas allow any GPU."""
        return all(quota.max_gpus != 0 for _, quota in self.quotas)

    @property
    def quotas(self) -> list[tuple[Owner, Quota]]:
        """The quotas that limit the job: first the token's, then the tenant's."""
        by_kind = {"user": self.quota, "token": self.quota, "tenant": self.tenant_quota}
        return [(owner, by_kind[owner.kind]) for owner in owners(self.account_id, self.tenant)]


_NO_STORE = "Waiting for the artifact store, which cannot be written at the moment"
_NO_API = "Waiting for the API, which does not answer the dispatcher at the moment"
_NO_HEAD = (
    "Waiting for memory on the only machine, Ray's head, of which {:.0%} is in use: a job takes 0.3 GB there beside its "
    "ranks, and beyond 95 % Ray would end processes. End other programs there, or add a node"
)
# Ray's supervisor, the driver and Ray Train's controller of an attempt (docs/scaling.md), in bytes.
_ATTEMPT_ON_HEAD = 0.3e9
# Share of the memory beyond which Ray ends processes (RAY_memory_usage_threshold).
_HEAD_FULL = 0.95
# The measurement is up to 20 s old, and an attempt's processes take some seconds to load.
_MEASURED_AFTER = timedelta(seconds=40)


@dataclass(frozen=True)
class Decision:
    """The decision on one queued job: it starts, or it waits, with a reason for its owner."""

    job: Queued
    waits_for: WaitsFor | None = None
    message: str = ""
    starts_by: datetime | None = None
    """The latest start of a job with a reservation, unless a job of higher priority arrives. `None` if jobs
    that wait before it may take its room."""
    may_preempt: bool = False
    """Whether it has a reservation and only lacks room."""
    lacks_machines: bool = False
    """Whether the empty cluster would be too small for all its workers."""
    keeps: Demand | None = None
    """Smaller demand whose room is kept until the job may shrink."""

    @property
    def starts(self) -> bool:
        return self.waits_for is None


def occupied(nodes: Sequence[Node], jobs: Iterable[Running]) -> Occupancy:
    """Return the resources of some nodes that jobs hold."""
    occupancy = Occupancy(nodes)
    for job in jobs:
        occupancy.change(job.demand, job.placement, +1)
    return occupancy


SHRINK_AFTER = timedelta(minutes=5)
"""How long an elastic job waits for its full number of workers. An attempt cannot grow, and nodes join within a few
minutes after a restart of Ray or of a machine."""

MAX_RESERVATIONS = 8
"""Most reservations at a time: each costs a search through the ends of the running jobs in every round. Clusters have
few kinds of nodes, and a kind needs at most two reservations, with and without GPUs."""

_Nodes = frozenset[int]
"""Indices of nodes in the cluster."""


@dataclass
class _Reservation:
    """The reservation of a job that does not fit: it can start at `at`."""

    job: Queued
    at: datetime
    nodes: _Nodes
    """The nodes that it may use."""
    others: Occupancy
    """Resources that other jobs may still hold at that time."""
    delayed_by: set[Demand] = field(default_factory=set)
    """Cache of demands that would leave too little room if they were still held at that time."""

    def with_job(self, demand: Demand) -> Occupancy | None:
        """Return `others` with another job that runs beyond `at`; `None` if it would delay this job."""
        if demand in self.delayed_by:
            return None
        others = self.others.copy()
        others.change(demand, None, +1)
        if others.fits(self.job.demand):
            return others
        self.delayed_by.add(demand)
        return None


def decide(
    cluster: Cluster,
    running: Sequence[Running],
    queue: Iterable[Queued],
    now: datetime,
    foreign: Mapping[str, Room] | None = None,
    *,
    lacking: Collection[str] = (),
    is_writable: bool = True,
    api_answers: bool = True,
) -> list[Decision]:
    """Decide on every job of the queue, in order.

    First choose the numbers that a job leaves to admission (see `automatic`).

    Args:
        running: all jobs that hold resources; their `ends_by` must be enforced.
        foreign: resources that other programs use on each node, by the node's id.
        lacking: ids of the jobs for which the cluster has been too small for `SHRINK_AFTER`.
        is_writable: whether the artifact store is writable; if not, no job starts.
        api_answers: whether the API answers; if not, no job starts, as it could not report.

    Where the head is the only node, its memory limits how many jobs start.
    """
    queue = _with_numbers(queue, cluster, without_foreign(cluster, foreign or {}))
    if not is_writable:
        return [Decision(job, "store", _NO_STORE) for job in queue]
    if not api_answers:
        return [Decision(job, "api", _NO_API) for job in queue]
    this_round = _Round(cluster, running, now, foreign or {}, lacking)
    left, decisions = _room_on_head(cluster, running, now), []
    for job in queue:
        decision = this_round.decide(job)
        if decision.starts and (left := left - 1) < 0:
            memory = cluster.head_memory
            assert memory is not None
            decision = Decision(job, "head", _NO_HEAD.format(memory.used / memory.total))
        decisions.append(decision)
    return decisions


def _room_on_head(cluster: Cluster, running: Sequence[Running], now: datetime) -> float:
    """Return for how many more attempts the head has memory; infinite where they run elsewhere, or if it is unknown."""
    memory = cluster.head_memory
    if memory is None or without_drivers(cluster.nodes):
        return math.inf
    unmeasured = [
        one.placement is None or (one.began_at is not None and now - one.began_at < _MEASURED_AFTER)
        for one in running
        if one.job_id is not None
    ]
    return (_HEAD_FULL * memory.total - memory.used) // _ATTEMPT_ON_HEAD - sum(unmeasured)


def _with_numbers(queue: Iterable[Queued], cluster: Cluster, nodes: Sequence[Node]) -> list[Queued]:
    """Return the queue with the numbers that its jobs leave to admission."""

    # Most jobs of a long queue have equal demands.
    @cache
    def with_numbers(demand: Demand, automatic: Automatic, may_use_gpus: bool) -> Demand:
        # Count GPUs that another program uses: the job waits for them.
        gpus = may_use_gpus and has_gpus(demand, cluster.nodes)
        return choose(demand, automatic, nodes, gpus=gpus)

    return [
        job
        if job.automatic == NOTHING
        else replace(job, demand=with_numbers(job.demand, job.automatic, job.may_use_gpus))
        for job in queue
    ]


class _Round:
    def __init__(
        self,
        cluster: Cluster,
        running: Sequence[Running],
        now: datetime,
        foreign: Mapping[str, Room],
        lacking: Collection[str],
    ) -> None:
        self._cluster, self._now, self._lacking = cluster, now, lacking
        self._nodes = without_foreign(cluster, foreign)
        self._running: list[Running] = []
        # The sums over the running jobs: in all, and by owner.
        self._occupancy, self._held = Occupancy(self._nodes), Room(0, 0)
        self._jobs: Counter[Owner] = Counter()
        self._gpus: Counter[Owner] = Counter()
        for job in running:
            self._hold(job)
        self._reservations: list[_Reservation] = []
        # Nodes that jobs waiting for room may use.
        self._contended: set[int] = set()
        # By owner and quota: the tokens of a user may have different quotas.
        self._quota_reservations: defaultdict[Owner, dict[Quota, QuotaReservation]] = defaultdict(
            dict
        )
        # Most jobs of a long queue have equal demands. Room only shrinks during a round, so a demand that
        # did not fit once need not be tried again.
        usable = [node for node in cluster.nodes if not node.drained]
        available = [node for node in self._nodes if not node.drained]
        self._places = cache(lambda demand: packing.most_places(usable, demand))
        self._available_places = cache(lambda demand: packing.most_places(available, demand))
        self._allowed = cache(self._allowed_nodes)
        self._leaves_room = cache(self._find_leaves_room)
        self._does_not_fit: set[Demand] = set()

    def decide(self, job: Queued) -> Decision:
        if self._places(job.demand) >= job.demand.workers:
            return self._decide_nodes(job)
        message = too_few_machines(job.demand, self._cluster)
        fitting = (demand for demand in job.smaller if self._places(demand) >= demand.workers)
        demand = next(fitting, None)
        if demand is None:
            return Decision(job, "machines", message, lacks_machines=True)
        decision = self._decide_nodes(replace(job, demand=demand))
        if decision.waits_for == "quota" or self._may_shrink(job):
            return replace(decision, lacks_machines=True)
        # Keep the room of that decision, or jobs of lower rank would fill the remaining nodes.
        keeps = decision.job.demand if decision.starts else None
        minutes = SHRINK_AFTER // timedelta(minutes=1)
        message += f". It starts with {demand.workers} once this has lasted for {minutes} minutes and there is room"
        return Decision(job, "machines", message, lacks_machines=True, keeps=keeps)

    def _decide_nodes(self, job: Queued) -> Decision:
        """Decide on a job that would fit on the empty cluster."""
        if not job.avoided:
            return self._decide_start(job)
        job = self._without_avoided(job)
        decision = self._decide_start(job)
        if decision.starts or not job.avoided:
            return decision
        nodes = "a node" if len(job.avoided) == 1 else f"{len(job.avoided)} nodes"
        why = f"It avoids {nodes} on which its last attempt failed before its first step"
        # Do not preempt for a job that would fit on a node that it avoids.
        return replace(decision, message=f"{decision.message}. {why}", may_preempt=False)

    def _may_shrink(self, job: Queued) -> bool:
        """Whether a job may take fewer workers: nodes have been missing for long, or are drained."""
        drained_too = packing.most_places(self._cluster.nodes, job.demand)
        return job.job_id in self._lacking or drained_too >= job.demand.workers

    def _without_avoided(self, job: Queued) -> Queued:
        """Exclude the nodes that a job avoids if it fits on others or may wait for them; otherwise avoid none."""
        demand = job.demand.without(job.avoided)
        elsewhere = replace(job, demand=demand)
        if self._available_places(demand) < demand.workers:
            return replace(job, avoided=frozenset())
        may_wait = job.avoids_until is not None and self._now < job.avoids_until
        if may_wait or (
            self._fits(elsewhere.demand) and self._beside_reservations(elsewhere) is not None
        ):
            return elsewhere
        return replace(job, avoided=frozenset())

    def _decide_start(self, job: Queued) -> Decision:
        decision = self._decide_quota(job)
        if decision is not None:
            return decision
        decision = self._decide_room(job)
        if decision.waits_for is None:
            self._start(job)
        else:
            for owner, quota in job.quotas:
                self._reserve_quota(job, owner, quota)
        return decision

    def _decide_quota(self, job: Queued) -> Decision | None:
        """Return the decision on a job that waits for a quota; `None` for any other.

        A job that waits for its token's quota reserves nothing of its tenant's quota.
        """
        for owner, quota in job.quotas:
            reason = self._why_quota_waits(job, owner, quota)
            if reason is None:
                continue
            whose = "token, for all jobs of its user" if owner.kind == "user" else owner.kind
            message = f"Waiting for the quota of its {whose}: {reason}"
            if quota.max_gpus is not None and job.demand.gpus > quota.max_gpus:
                message += ", which is more than all of it. Raise it, or lower resources.workers"
            reserved = self._reserve_quota(job, owner, quota)
            if reserved is not None and reserved.job_id == job.job_id:
                message += f". The quota is kept for it, as the first job of its {owner.kind} that "
                message += f"waits{_latest(reserved.at, self._now)}"
            return Decision(job, "quota", message)
        return None

    def _why_quota_waits(self, job: Queued, owner: Owner, quota: Quota) -> str | None:
        """Return why the quota of an owner holds a job back, as a clause; `None` if it does not."""
        excess = quota.excess(self._jobs[owner], self._gpus[owner], job.demand.gpus)
        if excess is not None:
            return excess
        reserved = self._quota_reservations[owner].get(quota)
        if reserved is not None and reserved.is_delayed_by(self._latest_end(job), job.demand.gpus):
            return "it is kept for an earlier job"
        return None

    def _decide_room(self, job: Queued) -> Decision:
        if not self._fits(job.demand):
            return self._wait_for_room(job)
        changed = self._beside_reservations(job)
        if changed is None:
            self._contended |= self._allowed(job.demand.choice)
            message = f"Waiting for {job.demand}: free, but reserved for an earlier job"
            return Decision(job, "reserved-room", message)
        for reservation, others in changed:
            reservation.others = others
        return Decision(job)

    def _wait_for_room(self, job: Queued) -> Decision:
        message = too_little_room(job.demand, self._cluster, self._nodes, self._held)
        if self._available_places(job.demand) < job.demand.workers:
            return Decision(job, "room", message)  # the end of other programs is unknown
        nodes = self._allowed(job.demand.choice)
        promised = self._contended.isdisjoint(nodes)
        self._contended |= nodes
        if not self._may_reserve(job.demand, nodes):
            return Decision(job, "room", message)
        may_preempt = self._beside_reservations(job) is not None
        reservation = self._reserve(job, nodes)
        self._reservations.append(reservation)
        message += ". Room is kept for it: it starts as soon as enough running jobs end"
        if promised:
            message += _latest(reservation.at, self._now)
        else:
            message += ", unless a job before it needs their room"
        at = reservation.at if promised else None
        return Decision(job, "room", message, starts_by=at, may_preempt=may_preempt)

    def _may_reserve(self, demand: Demand, nodes: _Nodes) -> bool:
        """Whether a job that does not fit gets a reservation: no earlier reservation competes with it."""
        if len(self._reservations) >= MAX_RESERVATIONS:
            return False
        others = [r.job.demand for r in self._reservations if not r.nodes.isdisjoint(nodes)]
        return not any(bool(other.gpus) == bool(demand.gpus) for other in others) and all(
            self._leaves_room(demand, other) for other in others
        )

    def _find_leaves_room(self, demand: Demand, other: Demand) -> bool:
        """Whether the empty cluster has room for another job, wherever Ray places this one."""
        empty = Occupancy(self._nodes)
        empty.change(demand, None, +1)
        return empty.fits(other)

    def _start(self, job: Queued) -> None:
        started = Running(job.demand, self._latest_end(job), job.account_id, tenant=job.tenant)
        self._hold(started)
        for owner, _ in job.quotas:
            for reservation in self._quota_reservations[owner].values():
                reservation.add(started.ends_by, job.demand.gpus)

    def _hold(self, job: Running) -> None:
        self._running.append(job)
        self._occupancy.change(job.demand, job.placement, +1)
        self._held = self._held.without(job.demand.worker, -job.demand.workers)
        for owner in owners(job.account_id, job.tenant):
            self._jobs[owner] += 1
            self._gpus[owner] += job.demand.gpus

    def _latest_end(self, job: Queued) -> datetime:
        """Return the latest end of a job that starts now."""
        return self._now + job.max_runtime

    def _reserve_quota(self, job: Queued, owner: Owner, quota: Quota) -> QuotaReservation | None:
        """Return the reservation within a quota of an owner, made for its first waiting job.

        `None` if there is no quota, or the job needs more than the whole quota.
        """
        if quota == NO_QUOTA or not quota.ever_allows(job.demand.gpus):
            return None
        reservations = self._quota_reservations[owner]
        if quota not in reservations:
            ends = (
                (other.ends_by, other.demand.gpus)
                for other in self._running
                if owner in owners(other.account_id, other.tenant)
            )
            reservations[quota] = QuotaReservation.at_earliest(
                job.job_id, quota, job.demand.gpus, ends, self._now
            )
        return reservations[quota]

    def _fits(self, demand: Demand) -> bool:
        if demand in self._does_not_fit:
            return False
        if self._occupancy.fits(demand):
            return True
        self._does_not_fit.add(demand)
        return False

    def _allowed_nodes(self, choice: NodeChoice) -> _Nodes:
        return frozenset(n for n, node in enumerate(self._nodes) if choice.allows(node))

    def _reserve(self, job: Queued, nodes: _Nodes) -> _Reservation:
        """Return a reservation at the earliest time at which the job is certain to fit."""
        ends = sorted({other.ends_by for other in self._running})

        def others_at(at: datetime) -> Occupancy:
            staying = (other for other in self._running if other.ends_by > at)
            return occupied(self._nodes, staying)

        # The job fits if no other job runs, so it fits at the last of these times.
        index = bisect_left(ends, True, key=lambda at: others_at(at).fits(job.demand))
        return _Reservation(job, ends[index], nodes, others_at(ends[index]))

    def _beside_reservations(self, job: Queued) -> list[tuple[_Reservation, Occupancy]] | None:
        """Return the reservations with the occupancy that they get if `job` starts now.

        Reservations after the job's end are left out. `None` if the job would delay one of them.
        """
        end, changed = self._latest_end(job), []
        for reserved in self._reservations:
            if not self._leaves_quota_for_reservation(job, reserved.job):
                return None
            if end <= reserved.at:
                continue
            others = reserved.with_job(job.demand)
            if others is None:
                return None
            changed.append((reserved, others))
        return changed

    def _leaves_quota_for_reservation(self, job: Queued, reserved: Queued) -> bool:
        # Check it now, not only at the reserved time: an exhausted quota would end the reservation.
        job_owners = owners(job.account_id, job.tenant)
        for owner, quota in reserved.quotas:
            jobs, gpus = self._jobs[owner] + 1, self._gpus[owner] + job.demand.gpus
            if owner in job_owners and quota.excess(jobs, gpus, reserved.demand.gpus) is not None:
                return False
        return True


def without_foreign(cluster: Cluster, foreign: Mapping[str, Room]) -> list[Node]:
    """Return the nodes of a cluster without the resources that other programs use."""
    return [_without(node, foreign.get(node.id)) for node in cluster.nodes]


def _without(node: Node, foreign: Room | None) -> Node:
    """Return a node without the resources that other programs use."""
    if foreign is None:
        return node
    return replace(
        node,
        total_cpus=max(0.0, node.total_cpus - foreign.cpus),
        total_gpus=max(0.0, node.total_gpus - foreign.gpus),
        total_memory=max(0.0, node.total_memory - foreign.memory),
    )


def _latest(at: datetime, now: datetime) -> str:
    """Return the latest time of a reservation, as the end of a sentence; empty if it is now."""
    if at <= now:
        return ""
    latest = f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC at the latest"
    return f", {latest} (by the max_hours of the running jobs)"
