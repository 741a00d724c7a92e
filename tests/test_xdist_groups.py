"""Tests that share a Ray are in one group, so that they run on one xdist worker.

Those that start a service with a Ray of their own are in the groups `services`, `web` and `environments`.
"""

import pytest


@pytest.mark.xdist_group("ray")
def test_xdist_group_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("needs several xdist workers: pytest -n 2 --dist loadgroup")
    # xdist marks a group at the end of a test's id; pytest 9.2 makes the id read-only.
    assert request.node.nodeid.endswith("@ray")
