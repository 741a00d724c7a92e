"""What people's folders, archives and tables hold beside images and labels, as public reports of other tools name it."""

import io
import re
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dasl_core.data.doubts import doubts
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.spec.source import SourceOptions
from service.client.packing import FolderContent

ARCHIVES = ("tar", "zip")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abcd\nsize 90405\n"


def png(number: int) -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def write(path: Path, kind: str, files: list[tuple[str, bytes]]) -> Path:
    """Write files as a folder or an archive, whose names may repeat."""
    location = path / f"data.{kind}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that repeat
        for name, content in files:
            if kind == "tar":
                with tarfile.open(location, "a") as archive:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            elif kind == "zip":
                with zipfile.ZipFile(location, "a") as zipped:
                    zipped.writestr(name, content)
            else:
                (location / name).parent.mkdir(parents=True, exist_ok=True)
                (location / name).write_bytes(content)
    return location


def images(*names: str) -> list[tuple[str, bytes]]:
    return [(name, png(number)) for number, name in enumerate(names)]


BIRDS = ("owl/a.png", "owl/b.png", "wren/a.png", "wren/b.png")


@pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
def test_folders_of_the_system_are_hidden(tmp_path: Path, kind: str) -> None:
    hidden = (
        "@eaDir/a.png/SYNOFILE_THUMB_M.png", "owl/@eaDir/a.png", "#recycle/a.png", "@Recycle/a.png",
        "$RECYCLE.BIN/S-1-5/$R1.png", "System Volume Information/a.png", "lost+found/a.png",
        "__MACOSX/owl/a.png", "owl/.ipynb_checkpoints/a.png", "owl/._a.png",
    )  # fmt: skip
    location = write(tmp_path, kind, images(*BIRDS, *hidden))
    index = ingest_folder(location)
    assert (tuple(index.paths), index.class_names) == (BIRDS, ["owl", "wren"])
    if kind == "folder":
        assert FolderContent(location).num_images == len(BIRDS)


@pytest.mark.parametrize("around", ["", "scans/"])
@pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
@pytest.mark.parametrize(
    ("of_images", "of_masks"),
    [
        ("images", ["masks"]),
        ("imgs", ["labels"]),
        ("JPEGImages", ["SegmentationClass", "SegmentationObject"]),
        ("images", ["annotations/trimaps"]),
        ("train", ["train_masks"]),
        ("rgb", ["depth"]),
    ],
)
def test_images_beside_their_masks_are_no_classes(
    tmp_path: Path, kind: str, around: str, of_images: str, of_masks: list[str]
) -> None:
    names = [f"{around}{folder}/{n}.png" for folder in (of_images, *of_masks) for n in range(2)]
    location = write(tmp_path, kind, images(*names))
    with pytest.raises(ValueError, match=f"no classes but .*--split {around}{of_images} "):
        ingest_folder(location)
    index = ingest_folder(location, options=SourceOptions(split=f"{around}{of_images}"))
    assert (len(index), index.labels) == (2, None)
    folders = (of_images, *(mask.partition("/")[0] for mask in of_masks))
    index = ingest_folder(location, options=SourceOptions(classes=folders))
    assert index.class_names == sorted({*folders})


@pytest.mark.parametrize("folders", ["mask no_mask", "masks owl", "label photo box", "image owl"])
def test_classes_may_be_named_like_masks(tmp_path: Path, folders: str) -> None:
    names = [f"{folder}/{number}.png" for folder in folders.split() for number in range(2)]
    index = ingest_folder(write(tmp_path, "folder", images(*names)))
    assert (index.class_names, index.warnings()) == (sorted(folders.split()), [])


@pytest.mark.parametrize(
    ("names", "masks"),
    [
        ("owl/0.jpg owl/0_mask.png wren/1.jpg wren/1-SEG.png", "owl/0_mask.png wren/1-SEG.png"),
        ("0.rgb.png 0.mask.png 1.rgb.png 1.mask.png", "0.mask.png 1.mask.png"),
        ("plant_rgb.png plant_label.png", "plant_label.png"),
        ("a/x/images/0.png a/x/masks/1.png a/x/masks/2.png", "a/x/masks/1.png a/x/masks/2.png"),
        ("face_mask.png face_gt.png other.png owl/mask/0.png", ""),
        ("owl/0.jpg wren/0_mask.png", ""),
    ],
)
def test_masks_among_the_images_are_reported(names: str, masks: str) -> None:
    first = re.escape(masks.partition(" ")[0])
    expected = rf"{len(masks.split())} of {len(names.split())} images are masks .* such as {first},"
    found = doubts(names.split(), None, [], [])
    assert [bool(re.match(expected, each)) for each in found] == [True] * bool(masks)


@pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
def test_equal_images_in_several_classes_are_reported(tmp_path: Path, kind: str) -> None:
    files = [*images("owl/a.png", "owl/b.png", "wren/c.png", "wren/d.png"), ("owl/e.png", png(3))]
    index = ingest_folder(write(tmp_path, kind, [*files, ("wren/f.png", png(2))]))
    (several,) = index.warnings()
    assert "1 of the images that occur several times are in several classes" in several
    assert "such as owl/e.png (owl) and wren/d.png (wren)" in several
    index.save(tmp_path / "index")
    assert DatasetIndex.load(tmp_path / "index").warnings() == [several]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (LFS, "a pointer of Git LFS; .* git lfs pull"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html>Quota exceeded</html>", "a page of HTML or XML"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a page of HTML or XML"),
        (b'{"message": "not found"}', "JSON"),
        (b"Rar!\x1a\7\1\0" + bytes(200), "a RAR archive, which is not supported"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"\xff\x0a" + bytes(100), "a JPEG XL image"),
        (bytes(5000), "not written: it begins with zeros"),
        (b"PK\3\4" + bytes(999), "a ZIP archive"),
    ],
)
@pytest.mark.parametrize("ending", ["jpg", "tar", "zip", "parquet", "npy", "csv", "txt"])
def test_what_is_no_image_is_named(tmp_path: Path, ending: str, content: bytes, what: str) -> None:
    if (ending, what) == ("zip", "a ZIP archive"):
        content, what = b"a" * 257 + b"ustar" + bytes(999), "a tar archive"
    (tmp_path / f"a.{ending}").write_bytes(content)
    with pytest.raises(ValueError, match=f"(the file|a.{ending}) is {what}"):
        ingest_folder(tmp_path if ending == "jpg" else tmp_path / f"a.{ending}")
