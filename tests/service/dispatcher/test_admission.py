"""Guarantees of admission, on simulated clusters that place workers arbitrarily."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service import ids
from service.scheduling import packing
from service.scheduling.admission import (
    MAX_RESERVATIONS,
    SHRINK_AFTER,
    Decision,
    Queued,
    Running,
    decide,
)
from service.scheduling.nodes import (
    ANY_NODE,
    GPU_TYPE_LABEL,
    Cluster,
    HeadMemory,
    Node,
    NodeChoice,
    with_drains,
)
from service.scheduling.occupancy import Occupancy
from service.scheduling.packing import Demand, Worker
from service.scheduling.quota import NO_QUOTA, Quota
from service.scheduling.shortage_tracker import ShortageTracker
from service.scheduling.shortages import too_few_machines, too_little_room

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Arrival:
    """A job to be submitted, which runs for `takes` of its `limit` minutes."""

    after: int
    demand: Demand
    limit: int
    takes: int
    token: str | None = None


@dataclass
class Placed:
    """A running job with the nodes of its workers and its actual end."""

    running: Running
    nodes: list[int]
    ends: datetime
    reports: datetime
    """When its placement becomes known."""


@dataclass
class Simulation:
    """A cluster with a dispatcher that checks it every minute.

    Attributes:
        silence: minutes until a job reports where its workers are.
    """

    sizes: list[tuple[int, int]]
    quotas: dict[str, Quota] = field(default_factory=dict)
    whim: int = 0
    silence: int = 10**6
    now: datetime = BEGAN
    queue: list[Queued] = field(default_factory=list)
    takes: dict[str, timedelta] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)
    started: dict[str, datetime] = field(default_factory=dict)
    promised: dict[str, datetime] = field(default_factory=dict)

    def submit(self, job: Arrival) -> str:
        job_id = f"job-{len(self.takes):04}"
        self.takes[job_id] = min(job.takes, job.limit) * MINUTE
        quota = self.quotas.get(job.token or "", Quota())
        lasts = job.limit * MINUTE
        self.queue.append(Queued(job_id, 0, job.demand, lasts, job.token, quota))
        return job_id

    def look(self) -> list[Decision]:
        """Run one round: remove ended jobs, then make, execute and check decisions."""
        self.placed = [job for job in self.placed if job.ends > self.now]
        before = self.running
        decisions = decide(self.cluster, before, self.queue, self.now)
        assert [decision.job for decision in decisions] == self.queue
        first = next((each for each in decisions if each.starts_by is not None), None)
        for decision in decisions:
            if decision.starts:
                self._start(decision.job)
            # Beside other reservations, a job is certain of its time only while placements are known.
            elif decision.starts_by is not None and (self.silence == 0 or decision is first):
                self.promised.setdefault(decision.job.job_id, decision.starts_by)
        self.queue = [job for job in self.queue if job.job_id not in self.started]
        check_what_waits(self, before, decisions)
        return decisions

    def pass_time(self) -> None:
        self.now += MINUTE

    @property
    def cluster(self) -> Cluster:
        nodes = (
            Node(str(n), "10.0.0.1", *size, 0, 0, labels={"zone": "ab"[n % 2]})
            for n, size in enumerate(self.sizes)
        )
        return Cluster(tuple(nodes))

    @property
    def running(self) -> list[Running]:
        return [
            replace(job.running, placement=Counter(map(str, job.nodes)))
            if job.reports <= self.now
            else job.running
            for job in self.placed
        ]

    def _start(self, job: Queued) -> None:
        """Place the workers on arbitrary nodes with room, which admission guarantees."""
        left = [list(size) for size in self.sizes]
        allowed = [job.demand.choice.allows(node) for node in self.cluster.nodes]
        for other in self.placed:
            for on in other.nodes:
                left[on][0] -= other.running.demand.worker.cpus
                left[on][1] -= other.running.demand.worker.gpus
        worker, nodes = job.demand.worker, []
        for _ in range(job.demand.workers):
            room = [
                number
                for number, (cpus, gpus) in enumerate(left)
                if allowed[number] and cpus >= worker.cpus and gpus >= worker.gpus
            ]
            assert room, f"oversubscribed by {job}"
            self.whim = (self.whim * 1103515245 + 12345) % 2**31
            on = room[(self.whim >> 16) % len(room)]
            left[on][0] -= worker.cpus
            left[on][1] -= worker.gpus
            nodes.append(on)
        running = Running(job.demand, self.now + job.max_runtime, job.account_id)
        ends, reports = self.now + self.takes[job.job_id], self.now + self.silence * MINUTE
        self.placed.append(Placed(running, nodes, ends, reports))
        self.started[job.job_id] = self.now


class Reserved(NamedTuple):
    """A job with a reservation for a moment."""

    job: Queued
    moment: datetime


def fits_beside(world: Simulation, running: Iterable[Running], demand: Demand) -> bool:
    occupancy = Occupancy(world.cluster.nodes)
    for one in running:
        occupancy.change(one.demand, one.placement, +1)
    return occupancy.fits(demand)


def empty_places(world: Simulation, demand: Demand) -> int:
    return packing.most_places(world.cluster.nodes, demand)


def share_nodes(world: Simulation, one: Demand, other: Demand) -> bool:
    return any(
        one.choice.allows(node) and other.choice.allows(node) for node in world.cluster.nodes
    )


def compete(world: Simulation, one: Demand, other: Demand) -> bool:
    """Whether a job gets no reservation beside another one's."""
    if not share_nodes(world, one, other):
        return False
    beside = fits_beside(world, [Running(one, BEGAN)], other)
    return bool(one.gpus) == bool(other.gpus) or not beside


def fits_from(world: Simulation, running: Sequence[Running], demand: Demand) -> datetime:
    """Return the earliest time from which a job surely fits beside the jobs that may still run."""
    for moment in sorted({world.now, *(one.ends_by for one in running)}):
        staying = [one for one in running if one.ends_by > moment]
        if fits_beside(world, staying, demand):
            return moment
    raise AssertionError("it fits on the empty cluster")


def exceeds(running: Iterable[Running], job: Queued) -> bool:
    own = [one for one in running if one.account_id == job.account_id]
    gpus = sum(one.demand.gpus for one in own) + job.demand.gpus
    return (job.quota.max_running_jobs is not None and len(own) >= job.quota.max_running_jobs) or (
        job.quota.max_gpus is not None and job.demand.gpus > 0 and gpus > job.quota.max_gpus
    )


def quota_moment(world: Simulation, running: Sequence[Running], job: Queued) -> datetime:
    """Return the earliest time from which the quota of a job's token surely allows it."""
    for moment in sorted({world.now, *(one.ends_by for one in running)}):
        if not exceeds([one for one in running if one.ends_by > moment], job):
            return moment
    raise AssertionError("its quota allows it alone")


def check_what_waits(
    world: Simulation, before: Sequence[Running], decisions: Sequence[Decision]
) -> None:
    """Check that no job waits without need, and that starts respect quotas and reservations."""
    running = list(before)
    reserved: list[Reserved] = []
    waiting: list[Demand] = []
    first: dict[str, tuple[Queued, datetime]] = {}
    for decision in decisions:
        job = decision.job
        alone = Running(job.demand, world.now + job.max_runtime, job.account_id)
        fits = fits_beside(world, running, job.demand)
        delays_own = False
        if job.account_id in first:
            own, moment = first[job.account_id]
            delays_own = exceeds([x for x in [*running, alone] if x.ends_by > moment], own)
        if decision.starts:
            assert fits
            assert not exceeds(running, job)
            assert not delays_own
            running.append(alone)
        elif decision.waits_for == "machines":
            assert empty_places(world, job.demand) < job.demand.workers
        elif decision.waits_for == "quota":
            assert exceeds(running, job) or delays_own
        elif decision.waits_for == "room":
            assert not fits
            beside = not any(compete(world, job.demand, each.job.demand) for each in reserved)
            assert ("Room is kept" in decision.message) == beside
            promised = not any(share_nodes(world, job.demand, other) for other in waiting)
            if beside:
                moment = fits_from(world, running, job.demand)
                assert decision.starts_by == (moment if promised else None)
                reserved.append(Reserved(job, moment))
        else:
            assert any(
                fits_from(world, [*running, alone], each.job.demand) > each.moment
                or (job.account_id == each.job.account_id and exceeds([*running, alone], each.job))
                for each in reserved
            )
        if decision.waits_for in ("room", "reserved-room"):
            waiting.append(job.demand)
        if decision.waits_for not in (None, "machines") and not exceeds([], job):
            first.setdefault(job.account_id or "", (job, quota_moment(world, running, job)))
    for each in reserved:
        assert fits_from(world, running, each.job.demand) == each.moment
        assert not exceeds(running, each.job)


demands = st.builds(
    Demand,
    st.integers(1, 4),
    st.builds(Worker, st.integers(1, 4), st.integers(0, 1), st.just(0)),
    st.just(ANY_NODE),
)
zones = st.sampled_from(
    [ANY_NODE, *(NodeChoice(labels=frozenset({("zone", zone)})) for zone in "ab")]
)
zoned = st.builds(lambda demand, choice: demand._replace(choice=choice), demands, zones)
clusters = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=3)


silences = st.sampled_from([0, 3, 10**6])


def arrivals(
    tokens: st.SearchStrategy[str | None], demands: st.SearchStrategy[Demand] = demands
) -> st.SearchStrategy[list[Arrival]]:
    one = st.builds(
        Arrival,
        after=st.integers(0, 3),
        demand=demands,
        limit=st.integers(1, 40),
        takes=st.integers(1, 40),
        token=tokens,
    )
    return st.lists(one, min_size=1, max_size=20)


def play(world: Simulation, jobs: Sequence[Arrival]) -> list[Decision]:
    """Submit all jobs, run until nothing changes, and return the last decisions."""
    for job in jobs:
        for _ in range(job.after):
            world.look()
            world.pass_time()
        world.submit(job)
    decisions = world.look()
    while world.placed:
        world.now = min(job.ends for job in world.placed)
        decisions = world.look()
    return decisions


@settings(deadline=None)
@given(clusters, arrivals(st.none(), zoned), st.integers(0, 2**31), silences)
def test_admission_never_oversubscribes_and_keeps_reservations(
    sizes: list[tuple[int, int]], jobs: list[Arrival], whim: int, silence: int
) -> None:
    world = Simulation(sizes, whim=whim, silence=silence)
    last = play(world, jobs)
    assert {decision.waits_for for decision in last} <= {None, "machines"}
    for job_id, moment in world.promised.items():
        assert world.started[job_id] <= moment


@settings(deadline=None)
@given(
    clusters,
    arrivals(st.sampled_from([None, "a", "b"])),
    st.fixed_dictionaries(
        {
            name: st.builds(Quota, st.none() | st.integers(1, 2), st.none() | st.integers(0, 4))
            for name in ("a", "b")
        }
    ),
    st.integers(0, 2**31),
)
def test_quotas_hold_and_keep_only_their_own_jobs(
    sizes: list[tuple[int, int]], jobs: list[Arrival], quotas: dict[str, Quota], whim: int
) -> None:
    world = Simulation(sizes, quotas, whim)
    last = play(world, jobs)
    assert {decision.waits_for for decision in last} <= {None, "machines", "quota"}
    for decision in last:
        if decision.waits_for == "quota":
            # The job waits forever: it needs more GPUs than its token may use at a time.
            limit = decision.job.quota.max_gpus
            assert limit is not None
            assert decision.job.demand.gpus > limit


def starts_despite(world: Simulation, kinds: list[Arrival], large: Arrival) -> None:
    """Submit a job to a queue that always has more small ones than can start; it starts nevertheless."""

    def crowd() -> None:
        while len(world.queue) < 3 * len(kinds):
            world.submit(kinds[len(world.takes) % len(kinds)])

    for _ in range(3):
        crowd()
        world.look()
        world.pass_time()
    before_it = len(world.queue)
    job_id = world.submit(large)
    if empty_places(world, large.demand) < large.demand.workers:
        return
    # The job and each one before it wait for the longest limit at most.
    end = world.now + 30 * MINUTE * (before_it + 1)
    while world.now <= end:
        crowd()
        world.look()
        if job_id in world.started:
            return
        world.now = min((job.ends for job in world.placed), default=world.now + MINUTE)
    raise AssertionError(f"{large} starved")


@settings(deadline=None)
@given(
    clusters,
    st.lists(st.tuples(demands, st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=4),
    demands,
    st.integers(0, 2**31),
    silences,
)
def test_large_job_starts_despite_stream_of_small_jobs(
    sizes: list[tuple[int, int]],
    kinds: list[tuple[Demand, int, int]],
    large: Demand,
    whim: int,
    silence: int,
) -> None:
    world = Simulation(sizes, whim=whim, silence=silence)
    starts_despite(world, [Arrival(0, *kind) for kind in kinds], Arrival(0, large, 10, 10))


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=4
    ),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_large_job_starts_despite_small_jobs_of_its_token(
    num_nodes: int, kinds: list[tuple[int, int, int]], gpus: int, max_gpus: int
) -> None:
    """More of them than the quota of the token allows."""

    def arrival(workers: int, limit: int, takes: int) -> Arrival:
        return Arrival(0, Demand(workers, Worker(1, 1)), limit, takes, "a")

    world = Simulation([(8, 4)] * num_nodes, {"a": Quota(max_gpus=max_gpus)}, silence=0)
    large = arrival(min(gpus, max_gpus, 4 * num_nodes), 10, 10)
    starts_despite(world, [arrival(*kind) for kind in kinds], large)


@settings(deadline=None)
@given(clusters, demands, st.integers(1, 30), st.integers(2, 12))
def test_equal_jobs_start_in_order_of_submission(
    sizes: list[tuple[int, int]], demand: Demand, limit: int, count: int
) -> None:
    world = Simulation(sizes)
    jobs = [Arrival(0, demand, limit, limit)] * count
    play(world, jobs)
    moments = list(world.started.items())
    assert moments == sorted(moments, key=lambda item: (item[1], item[0]))


def queued(job_id: str, cpus: int, hours: float, **more: object) -> Queued:
    demand = Demand(1, Worker(cpus, 0))
    return Queued(job_id, 0, demand, timedelta(hours=hours), **more)  # type: ignore[arg-type]


def running(cpus: int, hours: float, account_id: str | None = None) -> Running:
    return Running(Demand(1, Worker(cpus, 0)), BEGAN + timedelta(hours=hours), account_id)


def outcomes(cpus: int, busy: Sequence[Running], queue: Sequence[Queued]) -> dict[str, str]:
    cluster = Cluster((Node("n", "127.0.0.1", cpus, 0, 0, 0),))
    decisions = decide(cluster, busy, queue, BEGAN)
    return {one.job.job_id: one.waits_for or "starts" for one in decisions}


def test_job_that_fits_beside_reservation_starts() -> None:
    # With these limits no job surely ends before the reserved time, in 23 hours.
    queue = [queued("large", 6, 24), queued("a", 1, 24), queued("b", 1, 24), queued("c", 1, 24)]
    assert outcomes(8, [running(4, 23)], queue) == {
        "large": "room",
        "a": "starts",
        "b": "starts",
        "c": "reserved-room",
    }


def test_job_that_ends_before_reservation_uses_reserved_room() -> None:
    queue = [queued("large", 8, 24), queued("short", 4, 2), queued("long", 1, 24)]
    expected = {"large": "room", "short": "starts", "long": "room"}
    assert outcomes(8, [running(4, 3)], queue) == expected
    queue = [queued("large", 8, 24), queued("short", 3, 2), queued("long", 1, 24)]
    assert outcomes(8, [running(4, 3)], queue)["long"] == "reserved-room"


@pytest.mark.parametrize(
    ("used", "starting", "starts"),
    [(14.0, 0, "abcd"), (14.5, 0, "ab"), (14.5, 1, "a"), (14.5, 5, ""), (15.9, 0, "")],
)
def test_memory_of_the_only_machine_limits_what_starts(
    used: float, starting: int, starts: str
) -> None:
    """Each job takes 0.3 GB on Ray's head; at 95 % of it, Ray ends processes of any job."""
    head = Node("h", "10.0.0.1", 32, 0, 0, 0, is_head=True)
    settled, recent = BEGAN - timedelta(minutes=1), BEGAN - timedelta(seconds=10)
    placed = replace(running(1, 1), job_id="job_a", placement={"h": 1}, began_at=settled)
    unmeasured = [replace(running(1, 1), job_id=f"job_{n}") for n in range(starting)]
    # It reported its nodes within seconds, and the memory was measured before.
    unmeasured[:1] = [replace(one, placement={"h": 1}, began_at=recent) for one in unmeasured[:1]]
    queue = [queued("large", 64, 1), *(queued(name, 1, 1) for name in "abcd")]
    memory = HeadMemory(used * 1e9, 16e9)

    def waits(*nodes: Node, memory: HeadMemory | None = memory) -> dict[str, str | None]:
        cluster = Cluster(nodes, head_memory=memory)
        decisions = decide(cluster, [placed, *unmeasured], queue, BEGAN)
        return {one.job.job_id: one.waits_for for one in decisions}

    limited = {name: None if name in starts else "head" for name in "abcd"}
    assert waits(head) == {"large": "machines"} | limited
    drained = with_drains(Cluster((head,), head_memory=memory), {"a node that left"})
    assert drained == Cluster((head,), head_memory=memory), "a drain changes nothing else"
    other = Node("n", "10.0.0.2", 1, 0, 0, 0)
    for found in (waits(head, other), waits(head, memory=None)):
        assert found == {"large": "machines"} | dict.fromkeys("abcd"), "drivers leave the head"


def test_reservation_waits_for_stopping_jobs() -> None:
    # The stopping job frees its CPUs at any moment, so no other job may take the rest meanwhile.
    queue = [queued("large", 4, 24), queued("small", 1, 0.1)]
    assert outcomes(4, [running(3, 0)], queue) == {"large": "room", "small": "reserved-room"}
    cluster = Cluster((Node("n", "10.0.0.1", 4, 0, 0, 0),))
    (decision, _) = decide(cluster, [running(3, 0)], queue, BEGAN)
    kept = "Room is kept for it: it starts as soon as enough running jobs end"
    assert decision.message == f"Waiting for 4 CPUs: 3 of 4 CPUs are in use. {kept}"


def test_job_that_waits_for_memory_is_told_how_much_there_is() -> None:
    cluster = Cluster((Node("n", "10.0.0.1", 4, 0, 0, 0, total_memory=8 * packing.BYTES_PER_GB),))
    demand = Demand(2, Worker(1, 0, 6 * packing.BYTES_PER_GB))
    held = packing.Room(1, 0, 4 * packing.BYTES_PER_GB)
    assert too_little_room(demand, cluster, cluster.nodes, held) == (
        "Waiting for 2 CPUs and 12 GB of memory: 1 of 4 CPUs are in use; jobs reserve 4 of 8 GB of memory, "
        "and no node may have enough of the rest"
    )
    assert too_few_machines(demand, cluster) == (
        "Waiting for more machines: 2 workers with 2 CPUs and 12 GB of memory in all do not fit on 1 node "
        "with 4 CPUs and 0 GPUs in all and 8 GB of memory"
    )


def test_fragmented_room_is_reported_as_reason() -> None:
    cluster = Cluster(tuple(Node("n", "10.0.0.1", 4, 0, 0, 0) for _ in range(2)))
    (decision,) = decide(cluster, [running(1, 1), running(1, 2)], [queued("whole", 4, 1)], BEGAN)
    assert decision.message == (
        "Waiting for 4 CPUs: 2 of 8 CPUs are in use, and no node may have enough of the rest. "
        "Room is kept for it: it starts as soon as enough running jobs end, "
        "2026-01-01 01:00 UTC at the latest (by the max_hours of the running jobs)"
    )


def test_jobs_overtake_job_held_by_quota() -> None:
    quota = Quota(max_running_jobs=1)
    queue = [queued("kept", 4, 24, account_id="t", quota=quota), queued("next", 2, 24)]
    assert outcomes(4, [running(1, 24, "t")], queue) == {"kept": "quota", "next": "starts"}


def test_backfill_leaves_quota_of_reserved_job() -> None:
    quota = Quota(max_running_jobs=2)
    own = {"account_id": "t", "quota": quota}
    queue = [queued("large", 4, 24, **own), queued("own", 1, 1, **own), queued("other", 1, 1)]
    assert outcomes(4, [running(2, 24, "t")], queue) == {
        "large": "room",
        "own": "quota",
        "other": "starts",
    }


def test_quota_is_kept_for_first_waiting_job_of_a_token() -> None:
    def gpu_job(job_id: str, gpus: int, hours: float) -> Queued:
        demand = Demand(gpus, Worker(1, 1))
        return Queued(job_id, 0, demand, timedelta(hours=hours), "t", Quota(max_gpus=8))

    cluster = Cluster((Node("n", "127.0.0.1", 64, 16, 0, 0),))
    busy = [
        Running(Demand(1, Worker(1, 1)), BEGAN + timedelta(hours=hours), "t") for hours in (1, 2)
    ]
    queue = [gpu_job("large", 7, 24), gpu_job("long", 1, 1.5), gpu_job("short", 2, 1)]
    large, long, short = decide(cluster, busy, queue, BEGAN)
    assert large.message == (
        "Waiting for the quota of its token: max_gpus is 8, 2 are in use, and it needs 7. The quota "
        "is kept for it, as the first job of its token that waits, 2026-01-01 01:00 UTC at the latest "
        "(by the max_hours of the running jobs)"
    )
    assert (long.waits_for, long.message) == (
        "quota",
        "Waiting for the quota of its token: it is kept for an earlier job",
    )
    assert short.starts, "it ends before the quota allows the large job"


@pytest.mark.parametrize("quota", [NO_QUOTA, Quota(max_running_jobs=8)])
def test_quota_of_one_token_of_a_user_keeps_nothing_from_another_token(quota: Quota) -> None:
    user = ids.new_id("usr")
    small = queued("small", 1, 24, account_id=user, quota=Quota(max_running_jobs=1))
    large = [queued(f"large{n}", 1, 24, account_id=user, quota=quota) for n in range(2)]
    waits = {"small": "quota", "large0": "starts", "large1": "starts"}
    assert outcomes(4, [running(1, 1, user)], [small, *large]) == waits


@pytest.mark.parametrize(("limit", "waits"), [(2, "reserved-room"), (3, "starts")])
def test_backfill_by_another_token_leaves_quota_of_reserved_job(limit: int, waits: str) -> None:
    user = ids.new_id("usr")
    large = queued("large", 4, 24, account_id=user, quota=Quota(max_running_jobs=limit))
    expected = {"large": "room", "small": waits}
    queue = [large, queued("small", 1, 1, account_id=user)]
    assert outcomes(4, [running(2, 24, user)], queue) == expected


def test_job_beyond_its_quota_keeps_nothing() -> None:
    own = {"account_id": "t", "quota": Quota(max_gpus=0, max_running_jobs=5)}
    never = Queued("never", 0, Demand(1, Worker(1, 1)), timedelta(hours=1), **own)  # type: ignore[arg-type]
    cluster = Cluster((Node("n", "127.0.0.1", 4, 1, 0, 0),))
    decisions = decide(cluster, [], [never, queued("next", 1, 24, **own)], BEGAN)
    assert [decision.waits_for for decision in decisions] == ["quota", None]


def of_type(gpu_type: str) -> NodeChoice:
    return NodeChoice(gpu_type)


def gpu_job(job_id: str, gpus: int, hours: float, gpu_type: str = "H100") -> Queued:
    demand = Demand(gpus, Worker(1, 1), of_type(gpu_type))
    return Queued(job_id, 0, demand, timedelta(hours=hours))


def gpu_cluster(*gpu_types: str) -> Cluster:
    nodes = (
        Node(str(n), "", 16, 8, 0, 0, labels={GPU_TYPE_LABEL: gpu_type})
        for n, gpu_type in enumerate(gpu_types)
    )
    return Cluster(tuple(nodes))


def on_node(node: int, worker: Worker, workers: int, hours: float) -> Running:
    demand = Demand(workers, worker)
    return Running(demand, BEGAN + timedelta(hours=hours), placement={str(node): workers})


def test_job_for_other_nodes_has_a_reservation_of_its_own() -> None:
    cluster = gpu_cluster("H100", "H100", "A100", "A100")
    busy = [on_node(0, Worker(1, 1), 8, 5), on_node(2, Worker(1, 1), 8, 2)]
    queue = [
        gpu_job("h1", 16, 24),
        gpu_job("h2", 16, 24),
        gpu_job("a", 16, 24, "A100"),
        gpu_job("long", 1, 24, "A100"),
        gpu_job("short", 1, 2, "A100"),
    ]
    h1, h2, a, long, short = decide(cluster, busy, queue, BEGAN)
    assert (h1.starts_by, h2.starts_by) == (BEGAN + timedelta(hours=5), None)
    assert (a.starts_by, a.may_preempt) == (BEGAN + timedelta(hours=2), True)
    assert (long.waits_for, short.waits_for) == ("reserved-room", None)


def test_job_without_gpus_has_a_reservation_beside_one_for_gpus() -> None:
    cluster = gpu_cluster("H100", "H100")
    busy = [
        on_node(0, Worker(1, 1), 8, 5),
        on_node(1, Worker(1, 1), 5, 2),
        on_node(1, Worker(8, 0), 1, 2),
    ]
    wide = Queued("wide", 0, Demand(20, Worker(1, 0)), timedelta(hours=24))
    queue = [gpu_job("gpus", 4, 1), wide, queued("long", 8, 24), queued("short", 8, 2)]
    gpus, wide_one, long, short = decide(cluster, busy, queue, BEGAN)
    assert gpus.starts_by == BEGAN + timedelta(hours=2)
    assert (wide_one.waits_for, wide_one.starts_by) == ("room", None)
    assert wide_one.message.endswith(
        "it starts as soon as enough running jobs end, unless a job before it needs their room"
    )
    assert (long.waits_for, short.waits_for) == ("reserved-room", None)


def test_job_that_may_take_room_of_a_reserved_job_has_no_reservation() -> None:
    cluster = gpu_cluster("H100", "H100")
    busy = [on_node(0, Worker(1, 1), 8, 5), on_node(1, Worker(8, 0), 1, 2)]
    wide = Queued("wide", 0, Demand(4, Worker(8, 0)), timedelta(hours=24))
    queue = [gpu_job("gpus", 9, 1), wide, queued("small", 1, 24)]
    _, wide_one, small = decide(cluster, busy, queue, BEGAN)
    assert "Room is kept" not in wide_one.message
    assert small.starts


def test_number_of_reservations_is_limited() -> None:
    kinds = [f"type{n}" for n in range(MAX_RESERVATIONS + 1)]
    busy = [on_node(n, Worker(1, 1), 1, 1) for n in range(len(kinds))]
    queue = [gpu_job(kind, 8, 1, kind) for kind in kinds]
    decisions = decide(gpu_cluster(*kinds), busy, queue, BEGAN)
    assert [each.starts_by is not None for each in decisions] == [True] * MAX_RESERVATIONS + [False]


def test_wide_job_starts_despite_backlog_for_other_nodes_and_small_jobs() -> None:
    cluster, now, number = gpu_cluster("H100", "A100"), BEGAN, 0
    held: list[Running] = []
    wide, queue = gpu_job("wide", 8, 5, "A100"), list[Queued]()
    while now < BEGAN + timedelta(hours=20):
        held = [each for each in held if each.ends_by > now]
        while len(queue) < 8:
            kind = ("H100", 5) if sum("H100" in each.job_id for each in queue) < 4 else ("A100", 1)
            queue.append(gpu_job(f"{number}-{kind[0]}", kind[1], 1 + number % 3, kind[0]))
            number += 1
        ahead = [each for each in queue if "H100" in each.job_id]
        arrived = [wide] if now > BEGAN else []
        order = [*ahead, *arrived, *(each for each in queue if each not in ahead)]
        for each in decide(cluster, held, order, now):
            if each.starts and each.job is wide:
                return
            if each.starts:
                queue.remove(each.job)
                node = {"01"["A100" in each.job.job_id]: each.job.demand.workers}
                held.append(Running(each.job.demand, now + each.job.max_runtime, placement=node))
        now += timedelta(minutes=30)
    raise AssertionError("jobs behind it took its nodes")


def test_elastic_job_that_lacks_nodes_has_its_room_kept() -> None:
    """It waits for the nodes that are left, too; others do not take them, neither before it may shrink nor after."""
    cluster, busy = gpu_cluster("H100", "H100", "H100"), [on_node(0, Worker(1, 1), 1, 24)]
    whole = Worker(1, 8)
    elastic = replace(
        queued("elastic", 1, 24), demand=Demand(4, whole), smaller=(Demand(3, whole),)
    )
    shortages, kinds = ShortageTracker(), list[tuple[str | None, bool]]()
    for minute in range(21):
        now = BEGAN + minute * MINUTE
        first, later = decide(
            cluster,
            busy,
            [elastic, gpu_job("later", 8, 48)],
            now,
            lacking=shortages.persistent(now),
        )
        shortages.update([first, later], now)
        kinds.append((first.waits_for, first.may_preempt))
        assert later.waits_for == "reserved-room"
    before = SHRINK_AFTER // MINUTE
    assert kinds == [("machines", False)] * before + [("room", True)] * (21 - before)


@pytest.mark.parametrize(("minutes", "hours", "where"), [(-1, 24, ""), (1, 24, "01"), (1, 0, "1")])
def test_retry_waits_for_another_node_for_some_minutes(
    minutes: int, hours: float, where: str
) -> None:
    """Later it takes the node where it failed, but only if the other one has no room."""
    nodes = tuple(Node(name, "", 1, 0, 0, 0) for name in "01")
    busy = [replace(running(1, hours), placement={"1": 1})] if hours else []
    job = replace(
        queued("retry", 1, 1), avoided=frozenset("0"), avoids_until=BEGAN - minutes * MINUTE
    )
    (decision,) = decide(Cluster(nodes), busy, [job], BEGAN)
    allowed = "".join(each.id for each in nodes if decision.job.demand.choice.allows(each))
    assert (allowed if decision.starts else "", decision.may_preempt) == (where, False)
