"""Metric columns: downsampled by either database, with the same result and every spike kept."""

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.db.models import Metric
from service.db.session import Database
from service.jobs.metrics import Columns
from service.metrics import repository
from service.wire.jobs import MetricColumns
from tests.service.test_lifecycle import make_job

pytestmark = pytest.mark.dialect

# Name, step, attempt, value.
Point = tuple[str, int, int, float]


def stored(database: Database, points: list[Point]) -> str:
    """Store a job with these points and return its id."""
    job_id = make_job(database)
    with database.write() as session:
        session.add_all(
            Metric(job_id=job_id, name=n, step=s, attempt=a, time=float(s + a), value=v)
            for n, s, a, v in points
        )
    return job_id


def decoded(columns: Columns) -> MetricColumns:
    return MetricColumns.model_validate_json(b"".join(columns.as_json()))


def shown(
    database: Database, job_id: str, max_points: int | None = None, *names: str, from_step: int = 0
) -> MetricColumns:
    with database.read() as session:
        columns = Columns.from_points(
            repository.points(session, job_id, names, from_step, max_points)
        )
    return decoded(columns)


def expected_steps(whole: MetricColumns, max_points: int) -> list[int]:
    """Return the steps that downsampling must keep, computed by brute force."""
    steps = whole.step
    if len(steps) <= max_points:
        return steps
    buckets = max(1, (max_points - 2) // (2 * len(whole.values)))
    first, span = steps[0], steps[-1] - steps[0] + 1
    kept = {steps[0], steps[-1]}
    for series in whole.values.values():
        values = dict(zip(steps, series, strict=True))
        for number in range(buckets):
            present = [
                (values[s], s)
                for s in steps
                if values[s] is not None and (s - first) * buckets // span == number
            ]
            if present:
                kept |= {min(present)[1], max(present, key=lambda pair: (pair[0], -pair[1]))[1]}
    return sorted(kept)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 2)),
        # Few distinct values, so that ties occur.
        st.integers(-5, 5).map(float),
        max_size=120,
    ),
    st.integers(2, 60),
    st.integers(0, 20),
)
def test_downsampling_keeps_extremes_first_and_last(
    database: Database, raw: dict[tuple[str, int, int], float], max_points: int, from_step: int
) -> None:
    job_id = stored(database, [(*key, value) for key, value in raw.items()])
    whole = shown(database, job_id, from_step=from_step)
    thin = shown(database, job_id, max_points, from_step=from_step)
    assert thin.step == expected_steps(whole, max_points)
    assert len(thin.step) <= max(max_points, 2 * len(whole.values) + 2)
    assert thin.values.keys() == whole.values.keys()
    at = {step: index for index, step in enumerate(whole.step)}
    assert thin.time == [whole.time[at[step]] for step in thin.step]
    for name, series in thin.values.items():
        assert series == [whole.values[name][at[step]] for step in thin.step]
        kept, full = ([v for v in x if v is not None] for x in (series, whole.values[name]))
        assert (min(kept), max(kept)) == (min(full), max(full))


def test_downsampling_keeps_spikes(database: Database) -> None:
    rng = random.Random(0)
    spikes = {1234: 50.0, 5678: -50.0, 9000: 30.0}
    points = [("loss", step, 1, spikes.get(step, rng.random())) for step in range(10_000)]
    job_id = stored(database, points)
    thin = shown(database, job_id, 100)
    assert len(thin.step) <= 100
    assert spikes.keys() <= set(thin.step)


def test_downsampling_budget_counts_only_selected_series(database: Database) -> None:
    points = [(name, step, 1, float(step)) for name in "ab" for step in range(100)]
    job_id = stored(database, points)
    thin = shown(database, job_id, 10, "a")
    assert thin.values.keys() == {"a"}
    assert thin.step == expected_steps(shown(database, job_id, None, "a"), 10)


def test_columns_keep_the_later_point_of_a_step() -> None:
    both = decoded(Columns.from_points([("loss", 1, 10.0, 5.0), ("loss", 1, 20.0, 4.0)]))
    assert (both.step, both.time, both.values) == ([1], [20.0], {"loss": [4.0]})


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b", 'quoted "', "\u00fc"]), st.integers(0, 12)),
        st.tuples(st.floats(0, 9), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_columns_contain_every_point_at_its_step(
    points: dict[tuple[str, int], tuple[float, float]],
) -> None:
    answer = decoded(Columns.from_points([(*key, *points[key]) for key in sorted(points)]))
    assert answer.step == sorted({step for _, step in points})
    names = {name for name, _ in points}
    latest = [max(points[n, s][0] for n in names if (n, s) in points) for s in answer.step]
    assert answer.time == latest
    assert answer.values == {
        name: [points[name, step][1] if (name, step) in points else None for step in answer.step]
        for name in names
    }


def test_columns_take_few_bytes_per_value() -> None:
    points = ((f"s{n}", step, step / 3, n / 7) for n in range(20) for step in range(5000))
    tracemalloc.start()
    size = sum(len(block) for block in Columns.from_points(points).as_json())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 1_000_000
    assert peak < 30 * 100_000


def test_downsampling_drops_spike_overwritten_by_later_attempt(database: Database) -> None:
    points = [("loss", step, 1, 100.0 if step == 50 else 1.0) for step in range(100)]
    points += [("loss", step, 2, 1.0 + step / 1000) for step in range(40, 100)]
    thin = shown(database, stored(database, points), 10)
    assert max(value for value in thin.values["loss"] if value is not None) == 1.099


def test_metrics_response_has_a_bounded_number_of_values(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few requests for all points of a long job must not exhaust the memory."""
    points = {(name, step, 1): float(step % 7) for name in "abcde" for step in range(100)}
    job_id = stored(database, [(*key, value) for key, value in points.items()])
    assert len(shown(database, job_id, 1_000_000).step) == 100
    monkeypatch.setattr(repository, "_MAX_VALUES", 150)
    thin = shown(database, job_id, 1_000_000)
    assert thin.step == expected_steps(shown(database, job_id), 30)
    assert len(thin.step) <= 30
    assert len(shown(database, job_id, 1_000_000, "a").step) == 100
