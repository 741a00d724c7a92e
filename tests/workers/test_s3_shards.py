"""Shards in a real S3 bucket, as workers and as the library alone read and write them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.registry import _registry

from dasl_core.data.index import DatasetIndex
from dasl_core.data.shard_store import VARIABLE
from tests.support.small_shards import STORE_CHECKS, make_small, record_drawn
from tests.support.training_world import image_folder, ingest


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    return ingest(image_folder(tmp_path_factory.mktemp("pictures")))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that are decoded from their files."""
    return record_drawn(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("check", STORE_CHECKS)
def test_nodes_share_a_bucket(
    check: Callable[[DatasetIndex, Path, list[int]], None],
    pictures: DatasetIndex,
    tmp_path: Path,
    drawn: list[int],
    s3_root: str,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    make_small(monkeypatch)
    monkeypatch.setenv(VARIABLE, f"{s3_root}/shards")
    if alone:  # else the service's file system is registered
        monkeypatch.delitem(_registry, "s3", raising=False)
    check(pictures, tmp_path, drawn)
