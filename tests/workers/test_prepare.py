"""A preparation leaves in the cache what the ranks of jobs read."""

from pathlib import Path

import numpy as np
import pytest

from dasl_core.data.cache import MAX_BYTES_VARIABLE, cache_root
from dasl_core.data.canvases import Canvases
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.shard_store import VARIABLE
from dasl_core.train.data import open_sets
from service.protocol import PreparationStart, WorkerDataset
from tests.support.small_shards import IMAGES, make_small
from tests.support.training_world import image_folder, ingest, resolved
from workers.prepare import prepare


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparationStart:
    pictures = image_folder(tmp_path / "pictures")
    ingest(pictures).save(tmp_path / "index.safetensors")
    make_small(monkeypatch)
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    dataset = WorkerDataset(
        id="ds_1",
        name="pictures",
        uri=str(pictures),
        version=1,
        index_uri=(tmp_path / "index.safetensors").as_uri(),
        facts={},
    )
    return PreparationStart(
        dataset=dataset, dataset_roots=[], image_size=16, channels=3, image_cache="jpeg"
    )


@pytest.mark.parametrize("shared", [False, True])
def test_rank_decodes_nothing_after_a_preparation(
    shared: bool, start: PreparationStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shared:
        monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
    reports: list[tuple[int, int]] = []
    result = prepare(start, lambda read, total: reports.append((read, total)))
    assert (result.images, result.cached, result.form) == (IMAGES, IMAGES, "jpeg")
    assert (result.shared, result.unreadable, result.not_cached) == (shared, 0, None)
    assert reports[-1] == (IMAGES, IMAGES)
    folder = cache_root() / start.dataset.id
    assert result.bytes == sum(file.stat().st_size for file in folder.glob("*.shard"))
    assert len(list(folder.glob("*.shard"))) > 1

    def fail(*_: object) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(Drawer, "draw_valid", fail)
    if shared:
        folder = tmp_path / "another-node" / start.dataset.id
    index = DatasetIndex.load(tmp_path / "index.safetensors")
    canvases = Canvases(index, 16, 3, cache=folder, threads=1, form="jpeg")
    canvases.read(range(IMAGES))
    canvases.close()


def test_prepared_data_set_to_evaluate_on_is_not_decoded_again(
    start: PreparationStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(start, lambda read, total: None)
    train = ingest(image_folder(tmp_path / "train"))
    decoded: list[str] = []
    draw = Drawer.draw_valid

    def counted(drawer: Drawer, position: int) -> np.ndarray | str:
        decoded.append(drawer.index.location)
        return draw(drawer, position)

    monkeypatch.setattr(Drawer, "draw_valid", counted)
    # Little room: the other data set, which is opened first, must not take that of the prepared one.
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(prepared.bytes + prepared.bytes // 2))
    spec = resolved(train, train={"image_cache": "jpeg"})
    backbone = spec.backbone.model_copy(update={"image_size": 16, "in_channels": 3})
    evaluate = spec.evaluate.model_copy(update={"dataset": "pictures"})
    sets = open_sets(
        spec.model_copy(update={"dataset": "train", "backbone": backbone, "evaluate": evaluate}),
        train,
        DatasetIndex.load(tmp_path / "index.safetensors"),
        cache=cache_root() / "ds_2",
        evaluate_cache=cache_root() / start.dataset.id,
        threads=1,
    )
    assert [each.num_cached for each in sets.values()][1] == IMAGES
    assert 0 < sets["train"].num_cached < IMAGES
    assert set(decoded) == {train.location}
    for each in sets.values():
        each.close()


def test_preparation_without_room_says_so(
    start: PreparationStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "10")
    with pytest.raises(ValueError, match="none of the images of pictures could be cached: they"):
        prepare(start, lambda read, total: None)
