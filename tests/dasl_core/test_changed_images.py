"""Images that are replaced after ingest: unreadable until a refresh, and in no cache; copies are no changes."""

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from dasl_core.data.decode.reasons import CHANGED, is_transient
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.opening import compute_checksum
from dasl_core.data.shard_store import VARIABLE
from dasl_core.data.unreadable import unreadable_error
from tests.dasl_core import image_files
from tests.support.small_shards import read_with_reasons

IMAGES = 12
_CHANGED = 3


def picture(number: int, size: tuple[int, int] = (40, 30), form: str = "PNG") -> bytes:
    return image_files.by_pillow(Image.new("RGB", size, (number, 0, 0)), form)


def as_folder(path: Path, pictures: list[bytes]) -> Path:
    folder = path / "images"
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(pictures):
        file = folder / f"{number:02}.png"
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)
    return folder


def as_tar(path: Path, pictures: list[bytes]) -> Path:
    files = ((f"{number:02}.png", content) for number, content in enumerate(pictures))
    (path / "images.tar").write_bytes(image_files.as_tar(files))
    return path / "images.tar"


def as_zip(path: Path, pictures: list[bytes]) -> Path:
    with zipfile.ZipFile(path / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(pictures):
            archive.writestr(f"{number:02}.png", content)
    return path / "images.zip"


def as_parquet(path: Path, pictures: list[bytes]) -> Path:
    parquet.write_table(pyarrow.table({"image": pictures}), path / "images.parquet")
    return path / "images.parquet"


def as_array(path: Path, pictures: list[bytes]) -> Path:
    images = [np.asarray(Image.open(io.BytesIO(content)).resize((40, 30))) for content in pictures]
    np.save(path / "images.npy", np.stack(images))
    return path / "images.npy"


WAYS = (as_folder, as_tar, as_zip, as_parquet, as_array)
Write = Callable[[Path, list[bytes]], Path]


def ingested(write: Write, path: Path) -> DatasetIndex:
    file = path / "index"
    ingest_folder(write(path, [picture(10 + each) for each in range(IMAGES)])).save(file)
    return DatasetIndex.load(file)


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("store", ["none", "raw", "shared"])
def test_replaced_image_is_unreadable_until_it_is_back(
    tmp_path: Path, write: Write, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "shared":
        monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
    cache = None if store == "none" else tmp_path / "cache" / "set"
    index = ingested(write, tmp_path)
    pictures = [picture(10 + each) for each in range(IMAGES)]
    write(tmp_path, [*pictures[:_CHANGED], picture(200, (20, 50)), *pictures[_CHANGED + 1 :]])
    index = replace(index)  # as in another process, which opens the files again
    pixels, unreadable = read_with_reasons(index, cache)
    assert unreadable[_CHANGED] == CHANGED
    assert pixels.max() < 200
    write(tmp_path, pictures)
    pixels, unreadable = read_with_reasons(replace(index), cache)
    assert unreadable == {}
    assert pixels[_CHANGED].max() == 10 + _CHANGED


@pytest.mark.parametrize("write", WAYS)
def test_copy_is_no_change(tmp_path: Path, write: Write) -> None:
    index = ingested(write, tmp_path)
    location = Path(index.location)
    away = location.rename(tmp_path / "away")
    shutil.copytree(away, location) if away.is_dir() else shutil.copyfile(away, location)
    for file in [location, *location.rglob("*")]:
        os.utime(file, ns=(1, 1))
        file.chmod(0o700)
    _, unreadable = read_with_reasons(index, None)
    assert unreadable == {}


@pytest.mark.parametrize("place", ["begin", "middle", "end"])
def test_change_of_plain_pixels_in_place_is_found(tmp_path: Path, place: str) -> None:
    pixels = np.zeros((200, 200, 3), np.uint8)
    for number in range(IMAGES):
        np.save(tmp_path / f"{number:02}.npy", pixels)
    index = ingest_folder(tmp_path)
    pixels[{"begin": 2, "middle": 100, "end": 199}[place]] = 255
    np.save(tmp_path / "03.npy", pixels)
    with pytest.raises(ValueError, match=f"^{CHANGED}$"):
        index.decode(_CHANGED, 3)
    assert index.decode(_CHANGED + 1, 3).max() == 0


def test_image_of_another_size_is_never_squashed(tmp_path: Path) -> None:
    index, content = ingested(as_folder, tmp_path), picture(200, (20, 50))
    (tmp_path / "images" / "03.png").write_bytes(content)
    # As if the image before had had its checksum.
    checksum = compute_checksum(io.BytesIO(content), inflates=False)
    index = replace(index, checksums=np.full(len(index), checksum, np.int32))
    with pytest.raises(ValueError, match=f"^{CHANGED}$"):
        index.decode(_CHANGED, 3)


@pytest.mark.parametrize("at_least", [(13, 17), (30, 40), (60, 80), None])
def test_jpeg_that_is_decoded_smaller_is_no_change(
    tmp_path: Path, at_least: tuple[int, int] | None
) -> None:
    (tmp_path / "0.jpg").write_bytes(picture(9, (243, 181), "JPEG"))
    height, width, _ = ingest_folder(tmp_path).decode(0, 3, at_least).shape
    assert (height, width) >= (at_least or (181, 243))


def test_error_of_many_changed_images_says_refresh(tmp_path: Path) -> None:
    assert is_transient(CHANGED)
    message = unreadable_error(
        "birds", ingested(as_folder, tmp_path), dict.fromkeys((3, 4), CHANGED)
    )
    assert message == (
        "2 of the 12 images of the data set 'birds' have changed or can no longer be read, such as 03.png "
        f"({CHANGED}); refresh the data set and submit the job again"
    )
