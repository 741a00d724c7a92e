"""`MetricThinner`: old points go, extremes stay, whatever is killed or repeated."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.artifacts.storage import Storage
from service.db.models import Job, Metric
from service.dispatcher import metric_thinner
from service.dispatcher.context import DispatcherContext, Entrypoints, utc_now
from service.dispatcher.metric_thinner import MetricThinner
from service.metrics import repository, thinning
from service.metrics.thinning import Section, sections_due
from service.runs import repository as runs
from tests.service.test_thinning import extremes
from tests.support.dispatcher_world import World

FULL, NARROWEST, STRIDE = 32, 4, 16
# Values by series and step.
Points = dict[tuple[str, int], float]


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thin after a few steps."""
    for module in (thinning, repository):
        monkeypatch.setattr(module, "FULL_STEPS", FULL)
    monkeypatch.setattr(thinning, "NARROWEST", NARROWEST)
    monkeypatch.setattr(metric_thinner, "STRIDE", STRIDE)


class MortalContext(DispatcherContext):
    """A context whose process is killed at a write, before or after the commit."""

    writes_left: float = float("inf")
    after_commit = False

    @contextmanager
    def write(self) -> Iterator[Session]:
        """See `DispatcherContext.write`."""
        self.writes_left -= 1
        with super().write() as session:
            yield session
            if self.writes_left < 0 and not self.after_commit:
                raise Killed
        if self.writes_left < 0:
            raise Killed


def thinner_of(world: World) -> tuple[MetricThinner, MortalContext]:
    context = MortalContext(
        # Longer than a test takes on a busy machine: nothing else renews the lease.
        settings=world.settings.model_copy(update={"lease_seconds": 600.0}),
        database=world.database,
        storage=Storage(world.settings.artifacts_uri),
        executor=world.executor,
        clock=utc_now,
        holder="first",
        entrypoints=Entrypoints(),
    )
    assert context.take_lease()
    return MetricThinner(context), context


def running(world: World, attempt: int = 1, job_id: str = "") -> str:
    job_id = job_id or world.add_job()
    status(world, job_id, "running", attempt)
    return job_id


def status(world: World, job_id: str, status: str, attempt: int) -> None:
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(status=status, attempt=attempt))


def report(world: World, job_id: str, attempt: int, points: Points) -> None:
    with world.database.write() as session:
        session.add_all(
            Metric(job_id=job_id, name=name, step=step, attempt=attempt, time=0.0, value=value)
            for (name, step), value in points.items()
        )


def shown(world: World, job_id: str, max_points: int | None = None) -> Points:
    with world.database.read() as session:
        rows = repository.points(session, job_id, (), 0, max_points)
        return {(row.name, row.step): row.value for row in rows}


def count(world: World, job_id: str) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).where(Metric.job_id == job_id)) or 0


def thinned(world: World, job_id: str) -> tuple[int, int, bool]:
    with world.database.read() as session:
        job = session.get_one(Job, job_id)
        return job.thinned_attempt, job.thinned_step, job.thinned


def rounds(thinner: MetricThinner, number: int) -> None:
    for _ in range(number):
        assert thinner.round()


def finish(world: World, thinner: MetricThinner, job_id: str) -> None:
    """Run rounds until an ended job is thinned completely."""
    for _ in range(200):
        if thinned(world, job_id)[2]:
            return
        assert thinner.round()
    raise AssertionError("not thinned")


def series(name: str, steps: range, seed: int = 0) -> Points:
    rng = random.Random(seed)
    return {(name, step): rng.random() for step in steps}


def check_extremes(all_points: Points, left: Points, newest: int, without: set[int]) -> None:
    """Check each bucket that has none of the steps `without`."""
    begin = 0
    for width, _, stop in reversed(sections_due(0, newest)):
        for start in range(begin // width * width, stop, width):
            bucket = range(start, start + width)
            if without.intersection(bucket):
                continue
            for name in {name for name, _ in all_points}:
                every, kept = (
                    [points[name, step] for step in bucket if (name, step) in points]
                    for points in (all_points, left)
                )
                if every:
                    assert kept, (name, bucket)
                    assert (min(kept), max(kept)) == (min(every), max(every)), (name, bucket)
        begin = stop


@pytest.mark.slow
@pytest.mark.dialect(slow="postgresql")
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        # Steps back to where the attempt resumes, steps that it reports, writes until the dispatcher dies.
        st.tuples(
            st.integers(0, 120), st.integers(1, 250), st.none() | st.integers(0, 30), st.booleans()
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**32),
)
@example(attempts=[(0, 48, None, False), (3, 1, None, False)], seed=0)
def test_thinning_keeps_extremes_through_kills_and_resumed_attempts(
    world: World, attempts: list[tuple[int, int, int | None, bool]], seed: int
) -> None:
    rng = random.Random(seed)
    job_id, step, truth = running(world), 0, Points()
    thinner, context = thinner_of(world)
    last: dict[int, int] = {}
    borders: set[int] = set()
    for number, (back, steps, writes, after_commit) in enumerate(attempts, start=1):
        running(world, number, job_id)
        step = max(0, step - back)
        borders |= {step, step + 1, step + steps, step + steps + 1}
        for start in range(step + 1, step + steps + 1, 20):  # in several reports
            end = min(start + 20, step + steps + 1)
            points = {
                (name, each): rng.choice([-1.0, 0.0, 0.0, 0.0, rng.random(), 1.0])
                for name in ("loss", "lr")
                for each in range(start, end)
            }
            points |= {("rare", each): rng.random() for each in range(start, end) if each % 50 == 0}
            report(world, job_id, number, points)
            truth |= points
            try:
                thinner.round()
            except Killed:
                thinner, context = thinner_of(world)
            if writes is not None and start > step + steps // 2:
                context.writes_left, context.after_commit = writes, after_commit
                writes = None
        step = last[number] = step + steps
    status(world, job_id, "succeeded", len(attempts))
    thinner, _ = thinner_of(world)
    finish(world, thinner, job_id)

    left = shown(world, job_id)
    assert left.items() <= truth.items(), "each is the newest attempt's value"
    newest = max(last.values())  # of any attempt: the last one may have resumed and ended before it
    complete = {key: value for key, value in truth.items() if newest - FULL < key[1] <= step}
    assert complete.items() <= left.items()
    rare = {key: value for key, value in truth.items() if key[0] == "rare"}
    assert rare.items() <= left.items(), "a series of few points is complete"
    # A new attempt may overwrite a part of a bucket that was thinned.
    check_extremes(truth, left, newest, borders if len(attempts) > 1 else set())
    assert ("loss", 1) in left
    with world.database.read() as session:
        assert {n: runs.last_step(session, job_id, n) for n in last} == last
    before = count(world, job_id)
    with world.database.write() as session:
        session.execute(
            update(Job)
            .where(Job.id == job_id)
            .values(thinned=False, thinned_step=0, thinned_attempt=0)
        )
    finish(world, thinner, job_id)
    assert count(world, job_id) <= before
    check_extremes(truth, shown(world, job_id), newest, borders if len(attempts) > 1 else set())


def test_number_of_points_stays_bounded_while_a_job_runs(world: World) -> None:
    thinner, _ = thinner_of(world)
    job_id = running(world)
    for start in range(1, 1601, 400):
        report(world, job_id, 1, series("loss", range(start, start + 400), start))
        rounds(thinner, 7)
        levels = (start + 400).bit_length()
        assert count(world, job_id) < FULL + 2 * STRIDE + levels * (2 * FULL // NARROWEST + 4)
    assert thinned(world, job_id)[:2] == (1, 1600)
    assert not thinned(world, job_id)[2], "it may go on"


@pytest.mark.parametrize("first", [1, 2**29])
def test_steps_without_points_take_no_time(world: World, first: int) -> None:
    job_id, far = running(world), 2**30
    points = series("loss", range(first, first + 100)) | series("loss", range(far, far + 101))
    report(world, job_id, 1, points)
    status(world, job_id, "succeeded", 1)
    thinner, _ = thinner_of(world)
    finish(world, thinner, job_id)
    left = shown(world, job_id)
    early = [value for (_, step), value in points.items() if step < far]
    assert {min(early), max(early)} <= {*left.values()}
    assert {("loss", first), ("loss", far + 100)} <= {*left}
    assert sum(step < far for _, step in left) <= 4, (
        "those of one bucket, and the first and the last"
    )


def test_points_of_other_series_are_thinned_in_strides(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction would hold all of them, while the other writers wait."""
    job_id = running(world)
    points = series("loss", range(1, 2)) | series("loss", range(600, 601))
    report(world, job_id, 1, points | series("lr", range(1, 601)))
    sections, thin = list[Section](), repository.thin

    def measured(*arguments: Any) -> None:
        sections.append(arguments[3])
        thin(*arguments)

    monkeypatch.setattr(repository, "thin", measured)
    status(world, job_id, "succeeded", 1)
    finish(world, thinner_of(world)[0], job_id)
    assert sections
    assert all(each.stop - each.start < STRIDE + each.width for each in sections)


def test_jobs_of_earlier_versions_are_thinned_once(world: World) -> None:
    thinner, _ = thinner_of(world)
    ended, short, never_started = running(world), running(world), world.add_job()
    report(world, ended, 1, series("loss", range(1, 501)))
    report(world, short, 1, series("loss", range(1, 6)))
    for job_id in (ended, short):
        status(world, job_id, "failed", 1)
    finish(world, thinner, ended)
    finish(world, thinner, short)
    assert count(world, ended) < 150
    assert count(world, short) == 5
    assert [thinned(world, each)[2] for each in (ended, short, never_started)] == [
        True,
        True,
        False,
    ]
    with world.database.read() as session:
        assert repository.unthinned(session, "", 10) == []


def test_steps_that_a_newer_attempt_repeats_are_thinned_again(world: World) -> None:
    thinner, _ = thinner_of(world)
    job_id = running(world)
    for attempt in (1, 2):
        running(world, attempt, job_id)
        report(world, job_id, attempt, series("loss", range(1, 401), attempt))
        rounds(thinner, 7)
    status(world, job_id, "failed", 2)
    finish(world, thinner, job_id)
    assert count(world, job_id) < 200


def test_thinning_takes_turns_between_jobs_and_bounds_a_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_thinner, "_STRIDES_PER_ROUND", 4)
    monkeypatch.setattr(metric_thinner, "_STRIDES_PER_JOB", 2)
    monkeypatch.setattr(metric_thinner, "_JOBS_PER_ROUND", 3)
    thinner, _ = thinner_of(world)
    jobs = sorted(running(world) for _ in range(5))
    for job_id in jobs:
        report(world, job_id, 1, series("loss", range(1, 161)))
    progress = []
    for _ in range(4):
        assert thinner.round()
        progress.append([thinned(world, job_id)[1] // STRIDE for job_id in jobs])
    assert progress == [[2, 2, 0, 0, 0], [2, 2, 2, 2, 0], [2, 2, 2, 2, 2], [4, 4, 2, 2, 2]]


def test_points_of_an_attempt_that_starts_meanwhile_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values are thinned with its own progress."""
    thinner, _ = thinner_of(world)
    job_id = running(world)
    report(world, job_id, 1, series("loss", range(1, 201)))
    newer = series("loss", range(1, 6), seed=1)
    thin = repository.thin

    def thin_late(session: Session, *arguments: Any) -> None:
        session.add_all(
            Metric(job_id=job_id, name=name, step=step, attempt=2, time=0.0, value=value)
            for (name, step), value in newer.items()
        )
        session.flush()
        newer_is_stored.append(True)
        monkeypatch.setattr(repository, "thin", thin)
        thin(session, *arguments)

    newer_is_stored: list[bool] = []
    monkeypatch.setattr(repository, "thin", thin_late)
    rounds(thinner, 5)
    assert newer_is_stored
    assert newer.items() <= shown(world, job_id).items()


@pytest.mark.dialect
def test_buckets_keep_what_the_model_keeps(world: World) -> None:
    """With equal values, gaps, several attempts, and points that always stay."""
    random_ = random.Random(10)  # neither of the last two is an extreme
    job_id, section = running(world), Section(8, 16, 176)
    points: Points = {}
    first = {"loss": 1, "lr": 19}
    for name, begin in first.items():
        for attempt, steps in ((1, range(begin, 150)), (2, range(100, 190))):
            values = {(name, s): float(random_.randrange(5)) for s in steps if s % 7}
            report(world, job_id, attempt, values)
            points |= values
    with world.database.write() as session:
        repository.thin(session, job_id, first, section, 2)
    inside = range(section.start, section.stop)
    for name in ("loss", "lr"):
        of_name = sorted((step, value) for (each, step), value in points.items() if each == name)
        kept = extremes([(s, value) for s, value in of_name if s in inside], section.width)
        kept |= {149} if name == "loss" else {19}  # its first attempt's last step; its first step
        left = {step for each, step in shown(world, job_id) if each == name}
        assert left == {step for step, _ in of_name if step not in inside or step in kept}


def test_thinner_does_nothing_without_the_lease(world: World) -> None:
    thinner, context = thinner_of(world)
    context.release_lease()
    job_id = running(world)
    report(world, job_id, 1, series("loss", range(1, 201)))
    assert not thinner.round()
    assert count(world, job_id) == 200


def test_dispatcher_thins_in_the_background(world: World) -> None:
    job_id = world.start_job()
    report(world, job_id, 1, series("loss", range(1, 401)))
    world.tick(times=20)
    assert count(world, job_id) < 150
