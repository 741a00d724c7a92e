"""Fixtures for the tests of `dasl_core`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dasl_core.data.index import DatasetIndex
from tests.support.exports import Reader
from tests.support.gloo_pool import GlooPool
from tests.support.shallow_networks import SHALLOW
from tests.support.training_world import image_folder, ingest, skip_plots


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One worker runs all tests with a pool, because starting a second pool takes ten seconds.
    for item in items:
        if "pool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("pool"))


@pytest.fixture(scope="session")
def pool() -> Iterator[GlooPool]:
    """Four processes that can form a process group."""
    with GlooPool(4) as pool:
        yield pool


@pytest.fixture(scope="session")
def reader() -> Iterator[Reader]:
    """A process that loads exported backbones without this project."""
    with Reader() as reader:
        yield reader


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    """27 pictures of 20 x 24 pixels in three classes."""
    return ingest(image_folder(tmp_path_factory.mktemp("pictures")))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decoded images, shared by all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_plots(monkeypatch)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the large networks with fewer and narrower blocks; all else of their classes is tested."""
    create = timm.create_model

    def smaller(model_name: str, **arguments: Any) -> torch.nn.Module:
        model: torch.nn.Module = create(model_name, **SHALLOW.get(model_name, {}) | arguments)
        return model

    monkeypatch.setattr(timm, "create_model", smaller)


@pytest.fixture(autouse=True)
def _torch_settings() -> Iterator[None]:
    """Use one thread, and isolate the global generator between tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
