"""Order of job starts, the dispatcher's lease, and ingest of datasets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service import ids
from service.datasets.ingests import repository as ingests
from service.db import leases
from service.db.models import ClusterSnapshot, Dataset, DatasetVersion, IngestRun, Job, Token
from service.dispatcher import loop
from service.dispatcher.executor import ExecutorUnavailable, Submission
from service.scheduling import repository as scheduling
from service.scheduling import stored_decisions, window
from service.scheduling.nodes import Node
from service.states import DatasetState, JobStatus
from tests.support.dispatcher_world import World, failure
from tests.support.statements import recorded_statements


def test_job_starts_only_when_all_workers_fit(world: World) -> None:
    first, second = world.add_job(workers=1), world.add_job(workers=2)
    world.tick(times=3)
    assert world.executor.submitted == [world.run_id(first)]
    assert world.status(second) == JobStatus.QUEUED
    (event,) = world.events(second, "waiting")
    until = world.attempt(first).created_at + timedelta(hours=24)
    assert event == (
        "Waiting for 2 CPUs: 1 of 2 CPUs are in use. "
        "Room is kept for it: it starts as soon as enough running jobs end, "
        f"{until:%Y-%m-%d %H:%M} UTC at the latest (by the max_hours of the running jobs)"
    )
    world.worker_starts(first)
    world.worker_finishes(first, "succeeded")
    world.tick()
    assert world.status(second) == JobStatus.QUEUED  # The driver still runs.
    world.executor.end(world.run_id(first), 0)
    world.tick()
    assert world.status(second) == JobStatus.STARTING


def test_decisions_are_stored_when_they_change_once_a_second(world: World) -> None:
    def stored() -> dict[str, str | None]:
        with world.database.read() as session:
            found = stored_decisions.load(session).values()
        return {decision.job: decision.waits_for for decision in found}

    fits, large = world.add_job(), world.add_job(workers=3)
    world.tick()
    assert stored() == {fits: None, large: "machines"}
    larger = world.add_job(workers=4, priority=1)
    world.tick(0.5)
    assert stored() == {fits: None, large: "machines"}
    world.tick(0.5)
    assert list(stored().items()) == [(larger, "machines"), (large, "machines")]
    with recorded_statements(world.database) as executed:
        world.tick(5, times=2)
    assert not any("queue_decisions" in statement for statement, _ in executed)


def test_job_starts_on_node_that_reported_placements_leave_free(world: World) -> None:
    world.executor.nodes = [Node(name, "127.0.0.1", 2, 0, 0, 0) for name in ("a", "b")]
    pair = world.add_job(workers=2)
    world.tick()
    whole = world.add_job(cpus_per_worker=2)
    world.worker_starts(pair)
    world.tick()
    assert world.status(whole) == JobStatus.QUEUED, "each worker of the pair may be on one node"
    world.worker_reports_placement(pair, a=1)
    world.tick()
    assert world.status(whole) == JobStatus.QUEUED, "one of two ranks says too little"
    world.worker_reports_placement(pair, a=2)
    scheduling.attempts._placement_by_attempt.clear()  # another dispatcher, which has seen neither
    world.tick()
    assert world.status(whole) == JobStatus.STARTING


def test_placement_of_earlier_attempt_does_not_count(world: World) -> None:
    world.executor.nodes = [Node(name, "127.0.0.1", 2, 0, 0, 0) for name in ("a", "b")]
    pair = world.start_job(workers=2)
    world.worker_reports_placement(pair, a=2)
    world.executor.end(world.run_id(pair), 1)
    world.tick(times=3)
    assert world.executor.submitted == [world.run_id(pair), world.run_id(pair, 2)]
    world.worker_starts(pair, 2)
    whole = world.add_job(cpus_per_worker=2)
    world.tick()
    assert world.status(whole) == JobStatus.QUEUED


def test_job_waits_for_what_other_programs_use(world: World) -> None:
    world.executor.nodes = [Node("a", "127.0.0.1", 4, 0, 3, 0)]
    job = world.add_job(workers=2)
    world.tick()
    assert world.status(job) == JobStatus.QUEUED
    assert world.events(job, "waiting") == [
        "Waiting for 2 CPUs: 0 of 4 CPUs are in use, and other programs use 3 CPUs"
    ]
    small = world.add_job(max_hours=1000)
    world.tick()
    assert world.status(small) == JobStatus.STARTING, "nothing is reserved for the first"
    world.executor.nodes = [Node("a", "127.0.0.1", 4, 0, 1, 0)]
    world.tick()
    assert world.status(job) == JobStatus.STARTING, "what is used is the small job"


def test_late_report_of_own_use_is_not_foreign(world: World) -> None:
    first = world.start_job(workers=2)
    world.worker_reports_placement(first, **{"node-1": 2})
    world.executor.nodes = [Node("node-1", "127.0.0.1", 2, 0, 2, 0)]
    world.tick()
    world.end_job(first, "succeeded")
    world.tick()
    second = world.add_job(workers=2)
    world.tick()
    assert world.status(second) == JobStatus.STARTING


def test_round_considers_first_jobs_and_the_others_in_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "ALWAYS", 2)
    monkeypatch.setattr(window, "IN_TURN", 2)
    jobs = [world.add_job(priority=-(n // 3)) for n in range(7)]
    rounds = window.QueueWindow(timedelta(days=1))

    def considered() -> list[int]:
        with world.database.read() as session:
            return [jobs.index(job.job_id) for job in rounds.read(session, [], world.now())]

    assert [considered() for _ in range(4)] == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 6], [0, 1, 2, 3]]
    world.cancel(jobs[0])
    for job in jobs[4:]:
        world.cancel(job)
    assert considered() == [1, 2], "those that come next are gone"
    assert considered() == [1, 2, 3]
    world.cancel(jobs[3])
    assert considered() == [1, 2]


def test_job_behind_many_waiting_ones_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "ALWAYS", 2)
    monkeypatch.setattr(window, "IN_TURN", 2)
    for _ in range(6):
        world.add_job(workers=3)
    small = world.add_job()
    world.tick(times=3)
    assert world.status(small) == JobStatus.STARTING


def test_waiting_event_is_written_once_despite_restart(world: World) -> None:
    world.add_job(workers=2)
    waiting = world.add_job()
    world.tick()
    world.restart()
    world.tick()
    assert len(world.events(waiting, "waiting")) == 1


def test_queue_orders_by_priority_and_submission(world: World) -> None:
    low = world.add_job(workers=2)
    older, newer = (world.add_job(workers=2, priority=5) for _ in range(2))
    for job in (older, newer, low):
        world.tick()
        assert world.status(job) == JobStatus.STARTING
        world.cancel(job)
        world.tick()
        world.tick(6)
        assert world.status(job) == JobStatus.CANCELLED


def test_small_job_does_not_delay_large_one(world: World) -> None:
    first = world.add_job(max_hours=2)
    world.tick()
    large, small = world.add_job(workers=2), world.add_job(max_hours=2)
    short = world.add_job(max_hours=1)
    world.tick()
    assert world.status(large) == world.status(small) == JobStatus.QUEUED
    assert world.status(short) == JobStatus.STARTING
    assert world.events(small, "waiting") == [
        "Waiting for 1 CPU: free, but reserved for an earlier job"
    ]
    for job in (short, first):
        world.worker_starts(job)
        world.end_job(job, "succeeded")
        world.tick()
    assert world.status(large) == JobStatus.STARTING
    assert world.status(small) == JobStatus.QUEUED


def test_earlier_attempts_count_in_expected_duration(world: World) -> None:
    first = world.start_job(max_hours=1)
    world.worker_trains(first, 36 * 60)
    world.pause(first)
    world.end_job(first, "paused")
    world.resume(first)
    world.tick()
    assert world.status(first) == JobStatus.STARTING
    # The job, and the resources that it holds, have 24 of 60 minutes left.
    large = world.add_job(workers=2)
    longer, shorter = world.add_job(max_hours=0.5), world.add_job(max_hours=0.3)
    world.tick()
    assert world.status(large) == world.status(longer) == JobStatus.QUEUED
    assert world.status(shorter) == JobStatus.STARTING


def test_room_of_stopping_job_is_not_reused_early(world: World) -> None:
    first = world.start_job(max_hours=10)
    large, short = world.add_job(workers=2), world.add_job(max_hours=1)
    world.cancel(first)
    world.tick()
    assert world.status(first) == JobStatus.CANCELLING
    assert world.status(large) == world.status(short) == JobStatus.QUEUED
    world.end_job(first, "cancelled")
    world.tick()
    assert world.status(large) == JobStatus.STARTING


def test_lingering_driver_uses_room_but_no_quota(world: World) -> None:
    token = world.add_token(max_running_jobs=1)
    first, second = (world.add_job(token_id=token) for _ in range(2))
    third = world.add_job()
    world.tick()
    world.cancel(third)
    world.tick()
    world.worker_starts(first)
    world.worker_finishes(first, "succeeded")
    assert world.executor.is_running(world.run_id(first))
    world.tick()
    assert world.status(second) == JobStatus.STARTING
    another = world.add_job()
    world.tick()
    assert world.status(another) == JobStatus.QUEUED


def test_changed_priority_applies_in_next_round(world: World) -> None:
    world.add_job(workers=2)
    first, second = world.add_job(workers=2), world.add_job(workers=2)
    world.tick()
    with world.database.write() as session:
        session.get_one(Job, second).priority = 1
    world.executor.nodes = [Node("n", "127.0.0.1", 4, 0, 0, 0)]
    world.tick()
    assert world.status(second) == JobStatus.STARTING
    assert world.status(first) == JobStatus.QUEUED


def test_no_job_is_hidden_behind_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_WAITS_PER_TRANSACTION", 25)
    many = [world.add_job(workers=3) for _ in range(60)]  # These never fit on this cluster.
    last = world.add_job()
    world.tick()
    assert world.status(last) == JobStatus.STARTING
    world.tick(times=3)
    assert {len(world.events(job, "waiting")) for job in many} == {1}


def test_quota_limits_running_jobs_of_a_token(world: World) -> None:
    token = world.add_token(max_running_jobs=1)
    first, second = world.add_job(token_id=token), world.add_job(token_id=token, priority=-1)
    other = world.add_job(priority=-2)
    world.tick(times=2)
    assert world.status(first) == world.status(other) == JobStatus.STARTING
    assert world.status(second) == JobStatus.QUEUED
    until = world.attempt(first).created_at + timedelta(hours=24)
    assert world.events(second, "waiting") == [
        "Waiting for the quota of its token: max_running_jobs is 1, with 1 running. The quota is kept "
        f"for it, as the first job of its token that waits, {until:%Y-%m-%d %H:%M} UTC at the latest "
        "(by the max_hours of the running jobs)"
    ]
    world.worker_starts(first)
    world.end_job(first, "succeeded")
    world.tick()
    assert world.status(second) == JobStatus.STARTING


def test_quota_of_a_token_counts_all_jobs_of_its_user(world: World) -> None:
    user = ids.new_id("usr")
    limited, unlimited = world.add_token(user, max_running_jobs=1), world.add_token(user)
    first = world.add_job(token_id=unlimited, user_id=user)
    second = world.add_job(token_id=limited, user_id=user)
    alone = world.add_job(token_id=world.add_token(max_running_jobs=1))
    world.tick()
    assert world.status(first) == world.status(alone) == JobStatus.STARTING
    (message,) = world.events(second, "waiting")
    assert message.startswith(
        "Waiting for the quota of its token, for all jobs of its user: max_running_jobs is 1, with 1 running. "
    )


def test_gpu_quota_limits_jobs_of_a_token(world: World) -> None:
    world.executor.nodes = [Node("n", "127.0.0.1", 8, 4, 0, 0)]
    token = world.add_token(max_gpus=3)
    jobs = [world.add_job(token_id=token, workers=2, gpus_per_worker=1) for _ in range(2)]
    without = world.add_job(token_id=token)
    world.tick()
    assert world.status(jobs[0]) == world.status(without) == JobStatus.STARTING
    (event,) = world.events(jobs[1], "waiting")
    excess = "max_gpus is 3, 2 are in use, and it needs 2"
    assert event.startswith(
        f"Waiting for the quota of its token: {excess}. The quota is kept for it"
    )
    with world.database.write() as session:
        session.get_one(Token, token).max_gpus = 4
    world.tick()
    assert world.status(jobs[1]) == JobStatus.STARTING


def test_changed_reason_for_waiting_is_reported(world: World) -> None:
    token = world.add_token(max_running_jobs=0)
    job = world.add_job(token_id=token, workers=2)
    world.tick()
    with world.database.write() as session:
        session.get_one(Token, token).max_running_jobs = None
    world.add_job(priority=1)
    world.tick(times=3)
    quota, room = world.events(job, "waiting")
    assert "max_running_jobs is 0" in quota
    assert room.startswith("Waiting for 2 CPUs: 1 of 2 CPUs are in use")


def test_job_that_can_never_fit_does_not_block_queue(world: World) -> None:
    huge, small = world.add_job(workers=3), world.add_job()
    world.tick()
    assert world.status(small) == JobStatus.STARTING
    assert world.status(huge) == JobStatus.QUEUED
    assert world.events(huge, "waiting") == [
        "Waiting for more machines: 3 workers with 3 CPUs in all do not fit on 1 node with "
        "2 CPUs and 0 GPUs in all"
    ]


def snapshot(world: World) -> ClusterSnapshot:
    with world.database.read() as session:
        stored = scheduling.snapshot(session)
    assert stored is not None
    return stored


def test_no_job_starts_on_empty_cluster(world: World) -> None:
    world.executor.nodes = []
    job = world.add_job()
    world.tick()
    assert world.status(job) == JobStatus.QUEUED
    assert not snapshot(world).alive


def test_cluster_snapshot_is_stored(world: World) -> None:
    world.tick()
    seen = snapshot(world)
    assert (seen.alive, seen.total_cpus, seen.nodes[0]["id"]) == (True, 2, "node-1")
    world.executor.away = True
    world.tick()
    assert not snapshot(world).alive


@pytest.mark.dialect
def test_only_lease_holder_works(world: World) -> None:
    world.tick()
    first = world.dispatcher
    world.restart("second")
    job = world.add_job()
    world.tick()
    assert world.status(job) == JobStatus.QUEUED
    world.tick(40)  # The first has been silent for longer than its lease.
    assert world.status(job) == JobStatus.STARTING
    late = world.add_job()
    first.tick()
    assert world.status(late) == JobStatus.QUEUED
    assert world.executor.submitted == [world.run_id(job)]


@pytest.mark.dialect
def test_writes_of_former_lease_holder_are_discarded(world: World) -> None:
    world.tick()
    first = world.dispatcher
    world.ahead += timedelta(seconds=29)
    # `first` renewed its lease long ago, and the second takes over during a round of the first.
    cluster = world.executor.cluster

    def overtaken() -> object:
        world.executor.cluster = cluster  # type: ignore[method-assign]
        world.restart("second")
        world.tick(40)
        late.append(world.add_job())
        return cluster()

    job, late = world.add_job(), list[str]()
    world.executor.cluster = overtaken  # type: ignore[method-assign,assignment]
    first.tick()
    assert world.executor.submitted == [world.run_id(job)]
    assert world.status(job) == JobStatus.STARTING
    assert world.status(late[0]) == JobStatus.QUEUED


def unavailable(*_: object) -> None:
    raise ExecutorUnavailable("not now")


def test_failed_ingest_is_retried_once(world: World) -> None:
    dataset = world.add_dataset()
    world.tick()
    assert world.dataset(dataset).state == "ingesting"
    assert world.executor.submitted == [world.run_id(dataset)]
    world.executor.end(world.run_id(dataset), 1, "MemoryError")
    world.tick(times=2)
    assert world.executor.submitted == [world.run_id(dataset), world.run_id(dataset, 2)]
    world.executor.end(world.run_id(dataset, 2), 1, "MemoryError again")
    world.tick()
    assert world.dataset(dataset).state == "failed"
    error = failure(world.dataset(dataset))
    assert error["message"] == "The ingest ended with exit code 1: MemoryError again"
    assert error["log_tail"][-1] == "MemoryError again"


def test_ingest_whose_log_is_gone_with_its_node_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray answers 500 for that log, also in the next round."""
    dataset = world.add_dataset()
    world.tick()
    monkeypatch.setattr(world.executor, "logs", unavailable)
    for number in (1, 2):
        world.executor.kill(world.run_id(dataset, number))
        world.tick(times=2)
    assert world.dataset(dataset).state == "failed"
    error = failure(world.dataset(dataset))
    assert error["message"] == "The ingest was ended by SIGKILL"
    assert error["log_tail"] == []


def restart_ray(world: World) -> None:
    world.executor.lose_everything()
    world.restart()
    world.tick()


def test_ingest_that_ray_lost_is_tried_again(world: World) -> None:
    dataset = world.add_dataset()
    world.tick()
    for number in (2, 3):
        restart_ray(world)
        assert world.ingest_run(dataset, number - 1).state == "lost"
        assert world.executor.is_running(world.run_id(dataset, number))
    # What Ray lost is not what failed.
    world.executor.end(world.run_id(dataset, 3), 1)
    world.tick(times=2)
    assert world.executor.is_running(world.run_id(dataset, 4))
    world.executor.end(world.run_id(dataset, 4), 1)
    world.tick()
    assert world.dataset(dataset).state == "failed"


def test_ingest_that_ends_with_the_service_continues_after_its_start(world: World) -> None:
    """However often: `dasl serve` stops its own Ray, and machines are restarted."""
    dataset = world.add_dataset()
    world.tick()
    for _ in range(4):
        world.executor.lose_everything()
        world.restart().cluster_was_restarted("service")
        world.tick()
        assert world.executor.is_running(world.run_id(dataset))
    world.executor.lose_everything()
    world.tick(times=2)
    assert world.ingest_run(dataset, 1).state == "lost", "this time only Ray was restarted"


@pytest.mark.parametrize("killed", [True, False])
def test_ingest_during_which_the_service_is_killed_each_time_fails(
    world: World, killed: bool
) -> None:
    """It may take all memory. A service that is stopped says nothing of the ingest."""
    dataset = world.add_dataset()
    world.tick()
    for number in (1, 2, 3):
        with world.database.write() as session:
            session.get_one(IngestRun, (dataset, number if killed else 1)).state = "running"
            if not killed:
                leases.release_lease(session, leases.DISPATCHER_LEASE, "first")
        world.executor.lose_everything()
        world.restart().cluster_was_restarted("service")
        world.tick(times=2)
    state = world.dataset(dataset)
    assert state.state == ("failed" if killed else "ingesting")
    if killed:
        assert state.error is not None
        assert state.error["message"].startswith("The service ended 3 times")
    else:
        assert world.executor.is_running(world.run_id(dataset))


def test_ingest_that_ray_does_not_accept_after_a_restart_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = world.add_dataset()
    world.tick()
    world.executor.lose_everything()
    world.restart().cluster_was_restarted("service")

    with monkeypatch.context() as starting:
        starting.setattr(world.executor, "submit", unavailable)
        world.tick(times=3)
    world.tick()
    assert world.ingest_run(dataset, 1).state == "submitted"
    assert world.executor.is_running(world.run_id(dataset))


def test_ingest_that_takes_ray_down_each_time_fails(world: World) -> None:
    """It ends all trainings, too. An ingest that only ran beside it continues."""
    harmful, beside, later = (world.add_dataset() for _ in range(3))
    world.tick()
    assert world.executor.is_running(world.run_id(beside))
    restarts = 0
    while world.dataset(harmful).state != "failed":
        restart_ray(world)
        assert (restarts := restarts + 1) <= 3
        running = [
            each for each in (harmful, beside, later) if world.dataset(each).state == "ingesting"
        ]
        assert len(running) == 1, "apart from each other"
    error = failure(world.dataset(harmful))
    assert error["message"].startswith("Ray ended 3 times while the images were read")
    world.tick()
    assert world.dataset(beside).state == "ingesting"
    assert world.ingest_run(beside, 2).state == "submitted"
    world.end_ingest(beside, 2)
    world.tick()
    assert world.executor.is_running(world.run_id(later))


def test_lost_ingests_of_a_tenant_do_not_hold_those_of_others(world: World) -> None:
    """They took the only place for all tenants for as long as they ran."""
    mine = [world.add_dataset() for _ in range(2)]
    world.tick()
    restart_ray(world)
    assert sum(world.dataset(each).state == "ingesting" for each in mine) == 1
    other = world.add_dataset(tenant="other")
    world.tick()
    assert world.executor.is_running(world.run_id(other))
    assert sum(world.dataset(each).state == "ingesting" for each in mine) == 1


def test_ingest_that_ray_has_not_accepted_is_submitted_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = world.add_dataset()
    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "submit", unavailable)
        world.tick(times=5)
    world.restart()
    world.tick()
    assert world.executor.submitted == [world.run_id(dataset)]


def test_retried_job_keeps_its_room(world: World) -> None:
    """The retried job was first, and the younger one may take a day."""
    world.executor.nodes[0] = Node("n", "127.0.0.1", 2, 0, 0, 0)
    first = world.start_job(workers=2)
    younger = world.add_job(workers=1)
    world.executor.kill(world.run_id(first))
    world.tick()
    assert world.status(first) == JobStatus.RETRY_WAIT
    world.tick(1)
    assert world.status(younger) == JobStatus.QUEUED
    world.tick(2)
    assert world.executor.submitted == [world.run_id(first), world.run_id(first, 2)]
    # A job that is not retried releases its resources.
    world.worker_starts(first, 2)
    world.executor.kill(world.run_id(first, 2))
    world.tick()
    world.cancel(first)
    world.tick(times=2)
    assert world.executor.submitted[-1] == world.run_id(younger)


def test_deleted_dataset_leaves_neither_run_nor_index(world: World) -> None:
    ready, reading, waiting, next_one = (world.add_dataset() for _ in range(4))
    world.tick()
    indexes = {}
    for dataset in (ready, reading, waiting):
        folder = Path(world.settings.artifacts_uri.removeprefix("file://")) / "datasets" / dataset
        folder.mkdir(parents=True)
        indexes[dataset] = folder / "index.json.gz"
        indexes[dataset].write_bytes(b"of an earlier run")
    with world.database.write() as session:
        assert ingests.end_ingest(session, ready, 1, DatasetState.READY)
        for dataset in (ready, reading, waiting):
            session.get_one(Dataset, dataset).deleted_at = world.now()
    world.tick()
    assert not indexes[ready].exists()
    assert not indexes[waiting].exists()
    assert indexes[reading].exists(), "its run may still write"
    assert world.run_id(reading) in world.executor.stopped
    world.tick(times=2)
    assert not world.executor.is_running(world.run_id(reading))
    assert not indexes[reading].parent.exists()
    assert world.executor.submitted == [
        world.run_id(ready),
        world.run_id(reading),
        world.run_id(next_one),
    ]
    states = {world.dataset(dataset).state for dataset in (ready, reading, waiting)}
    assert states == {"removed"}


def test_old_version_leaves_no_files_once_no_job_needs_it(world: World) -> None:
    dataset = world.add_dataset()
    world.tick()
    root = f"{world.settings.artifacts_uri}/datasets/{dataset}"
    uris = [f"{root}/{number}/index" for number in (1, 2)] + [f"{root}/index.json.gz"]
    for uri in uris:
        file = Path(uri.removeprefix("file://"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"an index")
    with world.database.write() as session:
        assert ingests.end_ingest(session, dataset, 1, DatasetState.READY)
        row = session.get_one(Dataset, dataset)
        row.version, row.index_uri = 4, f"{root}/4/index"
        for number, uri in enumerate(uris, start=1):
            version = DatasetVersion(
                dataset_id=dataset, number=number, index_uri=uri, facts={}, created_at=world.now()
            )
            session.add(version)
    job = world.add_job()
    with world.database.write() as session:
        session.get_one(Job, job).dataset_version = 2
    world.tick(400)

    def left() -> list[str]:
        folder = Path(root.removeprefix("file://"))
        return sorted(str(each.relative_to(folder)) for each in folder.iterdir())

    assert left() == ["2"]
    world.cancel(job)
    world.tick()
    world.tick(400)
    assert left() == ["2"], "a checkpoint of its attempt may still be found"
    with world.database.write() as session:
        session.get_one(Job, job).finished_at = datetime(2026, 1, 1, tzinfo=UTC)
    world.tick(400)
    assert left() == []


def test_hanging_ingest_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [world.add_dataset() for _ in range(2)]
    waiting = world.add_dataset()
    policy = next(each for each, _ in world.dispatcher._reruns if each.noun == "ingest")
    monkeypatch.setattr(policy, "_rules", replace(policy._rules, time_limit=timedelta(minutes=3)))
    world.tick(times=2)
    # The machine slept, or its clock jumped.
    world.tick(30 * 3600)
    world.tick(60)
    assert waiting not in str(world.executor.submitted)
    world.tick(60)
    world.tick(60)
    world.tick()
    for dataset in hanging:
        failed = world.dataset(dataset)
        assert failed.state == "failed"
        assert failed.error is not None
        assert failed.error["message"].startswith("The ingest took longer than 3 minutes")
        assert not world.executor.is_running(world.run_id(dataset))
    assert world.executor.submitted[-1] == world.run_id(waiting)


def test_slow_ray_does_not_prevent_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status requests for all running jobs take longer than a lease."""
    world.executor.nodes[0] = Node("n", "127.0.0.1", 13, 0, 0, 0)
    for job in [world.add_job() for _ in range(12)]:
        world.tick()
        world.worker_starts(job)
    waiting = world.add_job()
    status = world.executor.status

    def slowly(submission_id: str) -> Submission | None:
        world.ahead += timedelta(seconds=3)
        return status(submission_id)

    monkeypatch.setattr(world.executor, "status", slowly)
    world.tick()
    assert world.status(waiting) == JobStatus.STARTING


def test_decisions_are_stored_again_after_those_of_another_dispatcher(world: World) -> None:
    """They differ from what this one stored last, before it lost the lease for a while."""
    world.add_job(workers=1000)
    world.tick()
    with world.database.write() as session:
        stored = stored_decisions.load(session)
        scheduling.save_decisions(session, [])
    assert stored
    world.dispatcher._context.terms += 1
    world.tick(5)
    with world.database.read() as session:
        assert stored_decisions.load(session) == stored
