"""Fixtures: one `dasl serve` for all tests of this folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.client import Client
from service.client.sync.models import Dataset, Job
from tests.support.polling import PATIENCE_SECONDS
from tests.support.running_service import (
    Served,
    serving,
    spec,
    write_broken_images,
    write_images,
    write_odd_images,
)

NUM_IMAGES = 180


@dataclass(frozen=True)
class Images:
    """A folder of images and the expected result of its ingest."""

    root: Path
    usable: int
    broken: dict[str, str]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    root = tmp_path_factory.mktemp("data") / "images"
    write_images(root, NUM_IMAGES)
    return Images(root, NUM_IMAGES + write_odd_images(root), write_broken_images(root))


# The service ends with the tests of this folder: an idle Ray and its service cost a tenth of a CPU core.
@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    home = folder / "home"
    with serving(folder, home) as (pid, url, token), Client(url, token, patience=60) as client:
        client.datasets.add(images.root, "images").wait(timeout=PATIENCE_SECONDS)
        yield Served(pid, url, token, client, "images", home / "artifacts")


@pytest.fixture(autouse=True)
def _failed_test_leaves_no_job(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel what is left when a test fails: its job would occupy the CPUs until the others time out."""
    yield
    if "served" in request.fixturenames:
        jobs = request.getfixturevalue("served").client.jobs
        for job in jobs.list():
            if not (job.done or job.status == "paused"):
                jobs.cancel(job.id)


@pytest.fixture(scope="package")
def client(served: Served) -> Client:
    return served.client


@pytest.fixture(scope="package")
def pictures(served: Served) -> Dataset:
    return served.client.datasets.get(served.dataset)


@pytest.fixture(scope="package")
def main_job(served: Served) -> Job:
    """The job of `spec`, which succeeded without any disturbance."""
    job = served.client.jobs.submit(spec(served.dataset, name="undisturbed"))
    return job.wait(timeout=PATIENCE_SECONDS, poll=0.5)
