"""Settings of the whole session."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tools import sync_client

if TYPE_CHECKING:
    from service.embedded.local_ray import LocalRay
    from tests.support.s3_server import S3Server


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "database of the tests that name none; by default two for those marked dialect, else one"
    parser.addoption("--databases", choices=["sqlite", "postgresql", "both"], help=help)


def pytest_configure(config: pytest.Config) -> None:
    # By default Ray's workers have a low priority, and the tests of the other xdist worker would starve them.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's name)
    if not hasattr(config, "workerinput"):
        sync_client.main()  # what is tested is what `service/client/aio` says now
    # How long an example takes says how busy the machine is, and nothing of what is tested. The same examples
    # every time: a change does not fail by what it has not touched. So none are made of the constants of the
    # modules that were imported before the test.
    settings.register_profile("any machine", deadline=None, derandomize=True)
    settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
    settings.load_profile("any machine")
    if not config.getoption("hypothesis_profile", default=None):
        providers._get_local_constants = lambda: providers._local_constants
    # Importing everything makes a million objects that stay. Python else walks all of them 26 times
    # meanwhile, which is a fifth of the collection's time.
    gc.disable()
    # Libraries miss frozen objects at the end, and say so. After pytest's own five collections, a second each.
    config.add_cleanup(gc.unfreeze)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest groups first, so that one worker does not end long before the other.
    longest = ("web", "ray", "services", "environments")

    def place(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        return longest.index(group.args[0]) if group and group.args[0] in longest else len(longest)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    # And again at each full collection of garbage while tests run: a second each. What little of it is garbage stays.
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
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            # Standby processes take the time of a core to import torch, and most tests end before they serve.
            environment.setenv("DASL_STANDBY_RANKS", "0")
            ray = LocalRay(folder / "ray", folder / "ray.log", cpus=2)
            stack.callback(ray.stop)
            ray.start()
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


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that this checkout builds."""
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(str(Path(__file__).parents[1]))
    (wheel,) = builder.build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return Path(wheel)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server; a test that kills it starts it again."""
    from tests.support.s3_server import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_root(s3_server: S3Server) -> Iterator[str]:
    """An empty folder in the bucket, which this process has access to."""
    from tests.support.s3_server import BUCKET, environment

    with environment(s3_server.environment):
        yield f"s3://{BUCKET}/{uuid4().hex}"


@pytest.fixture(params=["file", "s3"])
def store_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The root of an artifact store on a disk, and of one on an S3 server."""
    if request.param == "file":
        return f"file://{tmp_path}/a folder"
    root: str = request.getfixturevalue("s3_root")
    return root
