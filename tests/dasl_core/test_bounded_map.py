"""A pool's results in order: complete, and never many ahead of their consumer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dasl_core.data.bounded_map import bounded_map, map_waiting


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("count", [0, 1, 3, 4, 50])
@pytest.mark.parametrize("ahead", [1, 4])
def test_results_are_complete_and_in_order(
    threads: ThreadPoolExecutor, count: int, ahead: int
) -> None:
    assert list(bounded_map(threads, lambda n: n * n, range(count), ahead)) == [
        n * n for n in range(count)
    ]


def test_at_most_ahead_items_are_computed_before_they_are_taken() -> None:
    computed: list[int] = []
    pool = ThreadPoolExecutor(2)
    results = bounded_map(pool, computed.append, range(1000), 6)
    next(results)
    pool.shutdown(wait=True)  # everything submitted is now computed
    assert sorted(computed) == list(range(6))


def test_cost_of_items_ahead_stays_within_budget(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, submitted = [3, 3, 1, 3, 100, 3], 0
    submit = threads.submit

    def counted(*arguments: Any) -> Any:
        nonlocal submitted
        submitted += 1
        return submit(*arguments)

    monkeypatch.setattr(threads, "submit", counted)
    results = bounded_map(
        threads, costs.__getitem__, range(6), 50, cost=costs.__getitem__, budget=7
    )
    ahead = []
    for taken, cost in enumerate(results):
        assert cost == costs[taken]
        ahead.append(costs[taken:submitted])
    # The fifth alone exceeds the budget, and is computed alone.
    assert ahead == [[3, 3, 1], [3, 1, 3], [1, 3], [3], [100], [3]]


def test_error_reaches_the_consumer_and_ends_the_work(threads: ThreadPoolExecutor) -> None:
    computed: list[int] = []

    def divide(number: int) -> float:
        computed.append(number)
        return 1 / (2 - number)

    results = bounded_map(threads, divide, range(1000), 4)
    assert [next(results), next(results)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(results)
    threads.shutdown(wait=True)
    assert max(computed) <= 6


@pytest.mark.parametrize("count", [0, 1, 16, 17, 60])
@pytest.mark.parametrize("waiting_share", [0.2, 0.9])
def test_waiting_functions_get_threads_and_others_the_callers(
    monkeypatch: pytest.MonkeyPatch, count: int, waiting_share: float
) -> None:
    passed = [0.0]
    clocks = SimpleNamespace(
        perf_counter=lambda: passed[0], thread_time=lambda: passed[0] * (1 - waiting_share)
    )
    monkeypatch.setattr("dasl_core.data.bounded_map.time", clocks)
    callers: list[int] = []

    def square(number: int) -> int:
        callers.append(threading.get_ident())
        passed[0] += 1
        return number * number

    results = list(map_waiting(2, square, range(count)))
    assert results == [n * n for n in range(count)]
    in_threads = sum(caller != threading.get_ident() for caller in callers)
    assert in_threads == (max(0, count - 16) if waiting_share > 0.5 else 0)
