"""The checks of a rank before it trains."""

from pathlib import Path

import pytest
from PIL import Image

from dasl_core.data.ingest import ingest_folder
from dasl_core.spec.locations import EVERY_FOLDER, OUTSIDE, ReadableFolders
from service.protocol import WorkerDataset
from workers.datasets import open_dataset
from workers.rank import _check_weights


def registered(folder: Path, index_of: Path, scratch: Path) -> WorkerDataset:
    index = ingest_folder(index_of)
    index.save(scratch / "index.safetensors")
    return WorkerDataset(
        id="ds_1",
        name="birds",
        uri=str(folder),
        version=1,
        index_uri=f"file://{scratch}/index.safetensors",
        facts=index.facts().model_dump(),
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_dataset_may_be_registered_through_a_link(images: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(images)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert len(open_dataset(registered(link, link, tmp_path), EVERY_FOLDER, scratch)) == 2


def test_index_of_another_folder_is_refused(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ValueError, match="the index of birds belongs to"):
        open_dataset(registered(other, images, tmp_path), EVERY_FOLDER, scratch)


def test_damaged_index_is_named_by_its_data_set(images: Path, tmp_path: Path) -> None:
    dataset = registered(images, images, tmp_path)
    (tmp_path / "index.safetensors").write_bytes(b"\x1f\x8bno")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ValueError, match="the stored index of birds cannot be read: ") as raised:
        open_dataset(dataset, EVERY_FOLDER, scratch)
    assert "dasl datasets refresh ds_1" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_folder_that_became_link_out_of_roots_is_refused(images: Path, tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    data.mkdir()
    scratch.mkdir()
    birds = images.rename(data / "birds")
    dataset = registered(birds, birds, tmp_path)
    assert open_dataset(dataset, ReadableFolders([str(data)]), scratch).root == birds
    birds.rename(tmp_path / "secret")
    birds.symlink_to(tmp_path / "secret")
    with pytest.raises(
        ValueError, match=r"data set birds cannot be read: .* resolves to a path outside"
    ):
        open_dataset(dataset, ReadableFolders([str(data)]), scratch)
    # Without roots everything may be read, and the images are at the folder's current target.
    index = open_dataset(dataset, EVERY_FOLDER, scratch)
    assert (index.root, len(index)) == (tmp_path / "secret", 2)
    assert (index.root / index.paths[0]).exists()


def test_weights_outside_roots_are_refused(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    for folder in (data / "checkpoint", secret):
        folder.mkdir(parents=True)
        (folder / "backbone.safetensors").touch()
        (folder / "model.json").touch()
    readable = ReadableFolders([str(data)])
    (data / "out.pth").symlink_to(secret / "backbone.safetensors")
    for fine in (None, str(data / "checkpoint"), f"file://{data}/checkpoint/backbone.safetensors"):
        _check_weights(fine, readable)
    _check_weights(str(secret), EVERY_FOLDER)
    (data / "checkpoint" / "model.json").unlink()
    (data / "checkpoint" / "model.json").symlink_to(secret / "model.json")
    for out in (secret, secret / "backbone.safetensors", data / "out.pth", data / "checkpoint"):
        with pytest.raises(ValueError, match=r"backbone\.pretrained: .* outside the folders"):
            _check_weights(str(out), readable)


@pytest.mark.parametrize(
    ("weights", "beside"),
    [("backbone.safetensors", "model.json"), ("pytorch_model.bin", "config.json")],
)
def test_description_outside_roots_is_refused(tmp_path: Path, weights: str, beside: str) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    data.mkdir()
    (data / weights).touch()
    _check_weights(str(data / weights), ReadableFolders([str(data)]))
    (data / beside).symlink_to(secret)
    # The answer must not depend on what exists there.
    for _ in range(2):
        with pytest.raises(ValueError, match=r"backbone\.pretrained: .* outside the folders"):
            _check_weights(str(data / weights), ReadableFolders([str(data)]))
        secret.touch()


def test_manifest_outside_roots_is_refused(tmp_path: Path) -> None:
    checkpoint, secret = tmp_path / "data" / "checkpoint", tmp_path / "secret"
    checkpoint.mkdir(parents=True)
    for name in ("backbone.safetensors", "model.json"):
        (checkpoint / name).touch()
    secret.write_text("guess me")
    readable, manifest, link = (
        ReadableFolders([str(tmp_path / "data")]),
        checkpoint / "manifest.json",
        checkpoint / "a",
    )

    def told() -> str:
        with pytest.raises(ValueError) as refused:
            _check_weights(str(checkpoint), readable)
        return str(refused.value)

    outside = f"backbone.pretrained: {checkpoint} {OUTSIDE}"
    manifest.write_text('{"sha256": {"model.json": "", "a": ""}}')
    link.symlink_to(checkpoint / "model.json")
    _check_weights(str(checkpoint), readable)
    # The answer must not depend on what exists there.
    for target in (secret, tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        link.unlink()
        link.symlink_to(target)
        assert told() == outside
        _check_weights(str(checkpoint), EVERY_FOLDER)
    manifest.write_text('{"sha256": {"../../secret": ""}}')
    damaged = f"backbone.pretrained: {checkpoint} cannot be read: {manifest} is damaged"
    assert told() == damaged
    manifest.unlink()
    for target in (secret, tmp_path / "nothing"):
        manifest.symlink_to(target)
        assert told() == outside
        manifest.unlink()
