"""Tests that start Ray run one after another, however many workers run the suite."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("ray")
def test_xdist_group_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("only where several workers run the tests: pytest -n 2 --dist loadgroup")
    # xdist tells groups by the end of a test's id; pytest 9.2 does not let it write there.
    assert request.node.nodeid.endswith("@ray")
