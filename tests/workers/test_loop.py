"""What a rank does before it trains."""

from pathlib import Path

import pytest
from PIL import Image

from dasl_core.data.ingest import ingest_folder
from service.client.worker import WorkerDataset
from workers.loop import _index


def registered(folder: Path, index_of: Path, scratch: Path) -> WorkerDataset:
    index = ingest_folder(index_of)
    index.save(scratch / "index.json.gz")
    return WorkerDataset(
        id="ds_1",
        name="birds",
        uri=str(folder),
        index_uri=f"file://{scratch}/index.json.gz",
        facts=index.facts(),
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_a_data_set_may_be_registered_through_a_link(images: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(images)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert len(_index(registered(link, link, tmp_path), scratch)) == 2


def test_the_index_of_another_folder_is_refused(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ValueError, match="the index of birds belongs to"):
        _index(registered(other, images, tmp_path), scratch)
