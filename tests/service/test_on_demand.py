"""The local Ray that is started for work: when it starts and ends, without a real one."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.dispatcher.executor import ExecutorUnavailable, LogPiece, Submission, SubmissionState
from service.embedded import on_demand
from service.embedded.on_demand import RayOnDemand
from service.scheduling.dispatcher_report import RayReport
from service.scheduling.nodes import Cluster, Node

IDLE = RayReport(state="idle")
STARTING = RayReport(state="starting")


@dataclass
class Machine:
    """A Ray that runs when the test says so, a clock, and the object under test."""

    now: float = 1000.0
    running: bool = False
    starts: int = 0
    shown: int = 0
    """How often the need of standby processes was shown."""
    refusal: OSError | None = None
    cpus: float | None = None
    """What a started Ray answers; `None`: it does not answer yet."""
    log: Path = Path("ray.log")
    address: str = "http://127.0.0.1:1"
    token: str = "t"
    visited: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert not self.running, "two at once"
        self.running, self.starts, self.cpus = True, self.starts + 1, None

    def show_need(self) -> None:
        self.shown += 1

    def begin_stop(self) -> None:
        assert self.running

    def stop(self) -> None:
        self.running = False

    def cluster(self) -> Cluster:
        if self.cpus is None:
            raise ExecutorUnavailable("it starts")
        return Cluster((Node("n", "127.0.0.1", self.cpus, 0, 0, 0),))

    def status(self, _submission_id: str) -> Submission:
        return Submission(SubmissionState.RUNNING)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(on_demand, "monotonic", lambda: machine.now)
    monkeypatch.setattr(on_demand, "RayExecutor", lambda *_: machine)
    return machine


def of(machine: Machine, idle_seconds: float = 3600.0) -> RayOnDemand:
    return RayOnDemand(machine, idle_seconds, machine.visited)  # type: ignore[arg-type]


def run(ray: RayOnDemand, machine: Machine) -> None:
    """Start it for work, until it runs."""
    assert ray.keep(needed=True) == STARTING
    machine.cpus = 2
    assert ray.keep(needed=True) is None


def test_only_work_or_a_visit_starts_it(machine: Machine) -> None:
    ray = of(machine)
    for _ in range(3):
        assert ray.keep(needed=False) == IDLE
    assert machine.starts == 0
    machine.visited.set()
    assert ray.keep(needed=False) == STARTING
    assert (machine.starts, machine.visited.is_set()) == (1, False)
    # Ray lists a node before its CPUs.
    machine.cpus = 0
    assert ray.keep(needed=False) == STARTING
    machine.cpus = 4
    assert ray.keep(needed=False) is None
    assert (ray.is_running, machine.starts) == (True, 1)
    assert ray.first_cluster is not None
    assert ray.first_cluster.total_cpus == 4
    worked = of(Machine(visited=machine.visited))
    assert worked.keep(needed=True) == STARTING


def test_it_ends_an_hour_after_the_last_work_and_starts_again(machine: Machine) -> None:
    ray = of(machine)
    run(ray, machine)
    machine.now += 10_000
    assert ray.keep(needed=True) is None
    machine.now += 3599
    assert ray.keep(needed=False) is None
    machine.now += 1
    assert ray.keep(needed=False) == IDLE
    # Work that comes while it ends waits until its processes are gone.
    assert ray.keep(needed=True) == STARTING
    assert machine.starts == 1
    machine.running = False
    ray.keep(needed=True)
    run(ray, machine)
    assert machine.starts == 2


def test_without_a_limit_it_always_runs(machine: Machine) -> None:
    ray = of(machine, 0.0)
    assert ray.keep(needed=False) == STARTING
    machine.cpus = 2
    for _ in range(3):
        machine.now += 10**6
        assert ray.keep(needed=False) is None


def test_failed_start_is_told_and_repeated_later_each_time(machine: Machine) -> None:
    ray = of(machine)
    machine.refusal = OSError("no space left")
    pauses = []
    for _ in range(7):
        since, report = machine.now, ray.keep(needed=True)
        assert report is not None
        assert report.problem is not None
        assert "no space left" in report.problem
        machine.refusal = None
        while not machine.running:
            machine.now += 0.5
            report = ray.keep(needed=True)
            assert report is not None
            # Told until it runs.
            assert report.problem is not None
        pauses.append(machine.now - since)
        ray._end()
        machine.refusal = OSError("no space left")
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    machine.refusal = None
    machine.now += 30
    ray.keep(needed=True)
    machine.cpus = 2
    assert ray.keep(needed=True) is None


def test_start_without_an_answer_is_given_up(machine: Machine) -> None:
    ray = of(machine)
    assert ray.keep(needed=True) == STARTING
    machine.now += 299
    assert ray.keep(needed=True) == STARTING
    machine.now += 1
    report = ray.keep(needed=True)
    assert report is not None
    assert "does not answer for 300 s" in str(report.problem)
    assert not machine.running


def test_ray_that_died_waits_for_a_dispatcher_that_knows(machine: Machine) -> None:
    ray = of(machine)
    run(ray, machine)
    machine.running = False
    report = ray.keep(needed=True)
    assert report is not None
    assert "ended unexpectedly" in str(report.problem)
    machine.now += 60
    ray.keep(needed=True)
    assert (ray.lost_work.is_set(), machine.starts) == (True, 1)
    ray.lost_work.clear()
    ray.keep(needed=True)
    assert machine.starts == 2
    # One that died before it ran has lost nothing.
    machine.running = False
    report = ray.keep(needed=True)
    assert report is not None
    assert "did not start" in str(report.problem)
    assert not ray.lost_work.is_set()


def test_ended_service_starts_no_ray(machine: Machine) -> None:
    ray = of(machine)
    assert ray.keep(needed=True) == STARTING
    ray.close()
    ray.keep(needed=True)
    assert (machine.running, machine.starts) == (False, 1)


def test_ray_that_is_off_knows_no_submission(machine: Machine) -> None:
    ray = of(machine)
    assert ray.status("a") is None
    assert ray.logs("a", 0, 10) == LogPiece(b"", 0)
    assert ray.delete("a")
    ray.stop("a")
    with pytest.raises(ExecutorUnavailable):
        ray.cluster()
    ray.keep(needed=True)
    # While it starts or ends, this is not certain.
    for call in (ray.status, ray.stop, ray.delete):
        with pytest.raises(ExecutorUnavailable):
            call("a")
    machine.cpus = 2
    ray.keep(needed=True)
    assert ray.status("a") == Submission(SubmissionState.RUNNING)


def test_work_and_visits_show_the_need_of_standby_processes(machine: Machine) -> None:
    ray = of(machine)
    ray.keep(needed=False)
    assert machine.shown == 0
    machine.visited.set()
    ray.keep(needed=False)
    assert machine.shown == 1
    for seconds, shown in ((59, 1), (1, 2), (30, 2), (30, 3)):
        machine.now += seconds
        ray.keep(needed=True)
        assert machine.shown == shown
    machine.now += 600
    ray.keep(needed=False)
    assert machine.shown == 3


def test_problem_of_a_start_ends_with_the_need(machine: Machine) -> None:
    machine.refusal = OSError("no space left on device")
    ray = of(machine)
    report = ray.keep(needed=True)
    assert report is not None
    assert "no space left" in str(report.problem)
    machine.now += 3601
    assert ray.keep(needed=False) == IDLE, "no work needs Ray"
