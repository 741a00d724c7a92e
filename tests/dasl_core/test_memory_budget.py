"""Memory that threads share: never more is lent than there is, and one that needs more works alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dasl_core.data.memory_budget import MemoryBudget


@pytest.mark.parametrize("size", [0, 7])
def test_parts_lent_at_the_same_time_stay_within_budget(size: int) -> None:
    budget, lock, lent = MemoryBudget(size), threading.Lock(), list[int]()
    seen = []

    def work(part: int) -> None:
        with budget.lend(part):
            with lock:
                lent.append(part)
                seen.append(sorted(lent))
            with lock:
                lent.remove(part)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 1, 3, 100, 0, 7, 2, 8] * 20))
    assert len(seen) == 160
    assert all(sum(parts) <= size or len(parts) == 1 for parts in seen)


def test_memory_is_returned_after_an_error() -> None:
    budget = MemoryBudget(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), budget.lend(5):
            raise ZeroDivisionError
