"""What people's folders, archives and tables hold beside images and labels, as public reports of other tools name it."""

import base64
import io
import os
import re
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from dasl_core.data.decode import decode
from dasl_core.data.doubts import doubts
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.sources.base import class_name
from dasl_core.spec.source import SourceOptions
from service.client.packing import FolderContent
from tests.dasl_core.image_files import as_tar, by_pillow

ARCHIVES = ("tar", "zip")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abcd\nsize 90405\n"


def png(number: int) -> bytes:
    values = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    return by_pillow(Image.fromarray(values), "PNG")


def write(path: Path, kind: str, files: list[tuple[str, bytes]]) -> Path:
    """Write files as a folder or an archive, whose names may repeat."""
    location = path / f"data.{kind}"
    if kind == "tar":
        location.write_bytes(as_tar(files))
        return location
    for name, content in files:
        if kind == "zip":
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
    assert (index.class_names, index.warnings) == (sorted(folders.split()), [])


@pytest.mark.parametrize(
    ("names", "masks"),
    [
        ("owl/0.jpg owl/0_mask.png wren/1.jpg wren/1-SEG.png", "owl/0_mask.png wren/1-SEG.png"),
        ("0.rgb.png 0.mask.png 1.rgb.png 1.mask.png", "0.mask.png 1.mask.png"),
        ("plant_rgb.png plant_label.png", "plant_label.png"),
        ("a/train/good/0.png a/ground_truth/good/0.png", "a/ground_truth/good/0.png"),
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


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("a/train/x/0.png a/test/x/1.png b/test/x/2.png", "1 of 3 images .*, such as a/test, and"),
        ("/d/train_images/0.png /d/val_images/1.png", "1 of 2 images .*, such as /d/val_images, "),
        ("a/train/0.png b/test/1.png a/test_tube/2.png", None),
    ],
)
def test_test_images_in_each_class_are_reported(names: str, expected: str | None) -> None:
    found = doubts(names.split(), None, [], [])
    assert [bool(re.match(expected or "", each)) for each in found] == [True] * bool(expected)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ("Owl owl wren", 1),
        ("barn_owl Barn~Owl owl~ owl", 2),
        ("0 0.0 01 1", 2),
        ("owl Möwe mowe 1 -1 10", 0),
    ],
)
def test_names_of_classes_that_look_alike_are_reported(names: str, count: int) -> None:
    says = "name of a class is" if count == 1 else "names of classes are"
    found = doubts([], None, names.replace("~", "\u3000").split(" "), [])
    assert [each.startswith(f"{count} {says} written in") for each in found] == [True] * bool(count)


@pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
def test_equal_images_in_several_classes_are_reported(tmp_path: Path, kind: str) -> None:
    files = [*images("owl/a.png", "owl/b.png", "wren/c.png", "wren/d.png"), ("owl/e.png", png(3))]
    index = ingest_folder(write(tmp_path, kind, [*files, ("wren/f.png", png(2))]))
    (several,) = index.warnings
    assert several.startswith("1 image that occurs several times is in several classes, such as ")
    assert "such as owl/e.png (owl) and wren/d.png (wren)" in several
    index.save(tmp_path / "index")
    assert DatasetIndex.load(tmp_path / "index").warnings == [several]


@pytest.mark.parametrize(
    ("values", "names", "expected"),
    [
        ([1, 1.0, -1, 2, None], ["owl", "wren"], ["wren", "wren", None, "2", None]),
        ([-1, 2.0, 2.5, float("nan"), None], [], ["-1", "2", "2.5", None, None]),
        (["01", b"owl", True, "nan"], [], ["01", "owl", "True", "nan"]),
    ],
)
def test_labels_of_tables(values: list[object], names: list[str], expected: list[str]) -> None:
    assert [class_name(value, names) for value in values] == expected


@pytest.mark.parametrize("value", [[0, 1], {"id": 1}])
@pytest.mark.parametrize("kind", ["t.parquet", "saved"])
def test_several_labels_of_an_image_are_refused(tmp_path: Path, kind: str, value: Any) -> None:
    rows = {"image": [png(0), png(1)], "label": [value, value]}
    if kind == "saved":
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        table.save_to_disk(tmp_path / kind)
    else:
        parquet.write_table(pyarrow.table(rows), tmp_path / kind)
    with pytest.raises(ValueError, match="is no label; name another column, or use --no-labels"):
        ingest_folder(tmp_path / kind)
    assert len(ingest_folder(tmp_path / kind, options=SourceOptions(labels="none"))) == 2


@pytest.mark.parametrize(
    ("column", "value", "named", "problem"),
    [
        ("image", "iVBORw0KGgo", None, "only text instead of images .* write the decoded bytes"),
        ("pixels", "iVBORw0KGgo", None, "has no column of bytes, such as those of a JPEG file"),
        ("pixels", "iVBORw0KGgo", "pixels", "the row has text instead of the bytes of an image"),
        ("image", b"iVBORw0KGgo", None, "is text in base64; decode it first"),
        ("image", [[0, 255]], None, "has no column of bytes, such as those of a JPEG file"),
    ],
)
def test_tables_without_bytes_of_images_get_the_remedy(
    tmp_path: Path, column: str, value: Any, named: str | None, problem: str
) -> None:
    parquet.write_table(pyarrow.table({column: [value]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=problem):
        ingest_folder(tmp_path / "t.parquet", options=SourceOptions(image_column=named))


@pytest.mark.parametrize("place", ["data", "data/*"])
@pytest.mark.parametrize("kind", ["parquet", *ARCHIVES])
def test_links_to_archives_and_tables_are_followed_on_request(
    tmp_path: Path, kind: str, place: str
) -> None:
    if kind == "parquet":
        blob = tmp_path / "blob"
        parquet.write_table(pyarrow.table({"image": [png(0), png(1)]}), blob)
    else:
        blob = write(tmp_path, kind, images("a.png", "b.png"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"all.{kind}").symlink_to(os.path.relpath(blob, tmp_path / "data"))
    with pytest.raises(ValueError, match=r"follow-links|matches 0 files"):
        ingest_folder(tmp_path / place)
    index = ingest_folder(tmp_path / place, options=SourceOptions(links="follow"))
    assert index.decode(1, 3).shape == (6, 8, 3)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_are_read_as_they_are_unpacked(tmp_path: Path, kind: str) -> None:
    names = ("/home/owl/a.png", "/home/wren/b.png", "/home/owl/a.png", "../c.png", ".d/e.png")
    index = ingest_folder(write(tmp_path, kind, images(*names)))
    assert list(index.paths) == ["home/owl/a.png", "home/wren/b.png"]
    assert index.class_names == ["owl", "wren"]
    assert (index.decode(0, 3) == decode(io.BytesIO(png(2)), "a.png", 3)).all()
    assert [skipped.path for skipped in index.skipped] == ["../c.png", "home/owl/a.png"]
    assert index.skipped[1].reason == "a later file of the archive replaces it"
    (tmp_path / f"data.{kind}").unlink()
    with pytest.raises(ValueError, match="and unpack one inside another first"):
        ingest_folder(write(tmp_path, kind, [("n01440764.tar", b"x"), ("more.tar.gz", b"x")]))


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archive_for_each_class_gets_the_remedy(tmp_path: Path, kind: str) -> None:
    for name in ("owl", "wren"):
        location = write(tmp_path, kind, images("a.png", "b.png"))
        location.rename(tmp_path / f"{name}.{kind}")
    index = ingest_folder(tmp_path)
    assert (list(index.paths), index.labels) == ([*BIRDS], None)
    assert index.unused[0].startswith(f"No labels: the names of archives, such as owl.{kind}, are")


@pytest.mark.parametrize("names", ["DICOMDIR IM0001", "1.2.840.10008.5.1.4.1.1.2.17"])
@pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
def test_images_without_an_ending_get_the_remedy(tmp_path: Path, kind: str, names: str) -> None:
    location = write(tmp_path, kind, images(*names.split()))
    with pytest.raises(ValueError, match=r"Those that are images need an ending, such as \.dcm"):
        ingest_folder(location)
    (tmp_path / "more").mkdir()
    location = write(tmp_path / "more", kind, images(*names.split(), "a.png", "b.mp4"))
    assert "need an ending" in ingest_folder(location).unused[-1]


def test_part_of_a_split_zip_is_named(tmp_path: Path) -> None:
    content = write(tmp_path, "zip", images(*BIRDS)).read_bytes()
    (tmp_path / "part.zip").write_bytes(content[len(content) // 2 :])
    with pytest.raises(ValueError, match="part of a split archive; join the parts"):
        ingest_folder(tmp_path / "part.zip")


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("stack.npy", (6, 3, 24, 32), r"\(3, 24, 32\), probably \(bands, H, W\).*numpy.moveaxis"),
        ("stack.npy", (6, 1, 24, 32), r"probably \(bands, H, W\)"),
        ("stack.npy", (24, 32, 3), r"one image \(H, W, bands\); register its folder"),
        ("folder/a.npy", (3, 24, 32), r"probably \(bands, H, W\)"),
        ("stack.npy", (6, 13, 24, 32), None),
        ("stack.npy", (6, 24, 32, 3), None),
        ("stack.npy", (6, 24, 32), None),
        ("folder/a.npy", (24, 32, 11), None),
        ("folder/a.npy", (12, 24, 32), None),
    ],
)
def test_axes_of_arrays_are_not_guessed(
    tmp_path: Path, name: str, shape: tuple[int, ...], problem: str | None
) -> None:
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / name, np.zeros(shape, np.uint8))
    location = tmp_path / name.partition("/")[0]
    with pytest.raises(ValueError, match=problem) if problem else nullcontext():
        index = ingest_folder(location)
        assert len(index) in (1, 6)
        is_doubtful = shape in ((6, 13, 24, 32), (12, 24, 32))
        assert any("numpy.moveaxis" in warning for warning in index.warnings) == is_doubtful


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (LFS, "a pointer of Git LFS; .* git lfs pull"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html>Quota exceeded</html>", "a page of HTML or XML"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a page of HTML or XML"),
        (b'{"message": "not found"}', "JSON"),
        (b"Rar!\x1a\7\1\0" + bytes(200), "a RAR archive, which is not supported"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (base64.b64encode(png(0)), "text in base64; decode it first"),
        (b"\xff\x0a" + bytes(100), "a JPEG XL image"),
        (bytes(5000), "not written: it begins with zeros"),
        (b"PK\3\4" + bytes(999), "a ZIP archive"),
        (b"\x1f\x8b" + bytes(999), "compressed as a whole, with gzip.*decompress it"),
    ],
)
@pytest.mark.parametrize("ending", ["jpg", "tar", "zip", "parquet", "npy", "csv", "txt"])
def test_what_is_no_image_is_named(tmp_path: Path, ending: str, content: bytes, what: str) -> None:
    if (ending, what) == ("zip", "a ZIP archive"):
        content, what = b"a" * 257 + b"ustar" + bytes(999), "a tar archive"
    (tmp_path / f"a.{ending}").write_bytes(content)
    with pytest.raises(ValueError, match=f"(the file|a.{ending}) is {what}"):
        ingest_folder(tmp_path if ending == "jpg" else tmp_path / f"a.{ending}")
