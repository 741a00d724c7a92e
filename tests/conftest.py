"""Settings of the whole session."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from service.embedded.local_ray import LocalRay


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes says how busy the machine is, and nothing of what is tested. The same examples
    # every time: a change does not fail by what it has not touched.
    settings.register_profile("any machine", deadline=None, derandomize=True)
    settings.load_profile("any machine")
    # Importing everything makes a million objects that stay. Python else walks all of them 26 times
    # meanwhile, which is a fifth of the collection's time.
    gc.disable()
    # Libraries miss frozen objects at the end, and say so. After pytest's own five collections, a second each.
    config.add_cleanup(gc.unfreeze)


def pytest_collection_finish() -> None:
    # And again at each full collection of garbage while tests run: a second each.
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray with two CPUs for all tests that need no `dasl serve` around it."""
    # The core's tests also run where the service's dependencies are not installed.
    from service.dispatcher.executor import ExecutorUnavailable
    from service.dispatcher.ray_executor import RayExecutor
    from service.embedded.local_ray import LocalRay

    folder = tmp_path_factory.mktemp("ray")
    with LocalRay(folder / "ray", folder / "ray.log", cpus=2) as ray:
        executor = RayExecutor(ray.address, ray.token)
        deadline = time.monotonic() + 250
        while True:
            assert ray.running, ray.log.read_text()
            try:
                if executor.cluster().nodes:
                    break
            except ExecutorUnavailable:
                assert time.monotonic() < deadline, ray.log.read_text()
            time.sleep(0.1)
        executor.close()
        yield ray
