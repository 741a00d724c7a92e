"""The tests' pool of ranks: a rank that fails must not disturb the next call."""

import os

import pytest

from tests.support.gloo_pool import GlooPool


def fail(message: str) -> None:
    raise ValueError(message)


def die() -> None:
    os._exit(1)


def double(number: int) -> int:
    return 2 * number


def test_call_after_failed_ranks_gets_its_own_answers(pool: GlooPool) -> None:
    with pytest.raises(AssertionError, match=r"rank 0 of 2 failed:[\s\S]*ValueError: broken"):
        pool.call(2, fail, "broken")
    assert pool.call(2, double, 21) == [42, 42]


def test_rank_that_dies_is_replaced(pool: GlooPool) -> None:
    with pytest.raises(AssertionError, match=r"rank 0 of 1 failed:\nits process died"):
        pool.call(1, die)
    assert pool.call(2, double, 21) == [42, 42]
