"""Ingest of real-world folders: usable images are found, broken ones are listed, none is fatal."""

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageFile

from dasl_core.data import DatasetIndex, ingest_folder, sample
from dasl_core.data.array_file import write_arrays
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.strings import Strings
from dasl_core.ignored import IgnoredFiles
from dasl_core.spec import JobSpec, resolve
from dasl_core.spec.locations import ReadableFolders
from dasl_core.spec.resolve.facts import QUANTILES
from tests.dasl_core.image_files import as_dicom, by_pillow, by_tifffile, ramp


def picture(path: Path, size: tuple[int, int] = (20, 10), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(len(path.name)).integers(0, 256, (size[1], size[0], 3))
    Image.fromarray(values.astype(np.uint8)).convert(mode).save(path)
    return path


def reasons(index: DatasetIndex) -> dict[str, str]:
    return {skipped.path: skipped.reason for skipped in index.skipped}


def test_labels_are_names_of_first_level_folders(tmp_path: Path) -> None:
    for name in ("dog/z.png", "cat/deep/er/b.JPG", "cat/a.webp", "bird/c.gif"):
        picture(tmp_path / name)
    index = ingest_folder(tmp_path, workers=2)
    assert index.paths == ["bird/c.gif", "cat/a.webp", "cat/deep/er/b.JPG", "dog/z.png"]
    assert index.class_names == ["bird", "cat", "dog"]
    assert index.labels is not None
    assert index.labels.tolist() == [0, 1, 1, 2]
    assert index.skipped == []
    assert index.facts().num_classes == 3


@pytest.mark.parametrize("names", [("a.png", "b.png"), ("cat/a.png", "b.png"), ("only/a.png",)])
def test_labels_need_a_folder_per_image_and_two_classes(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        picture(tmp_path / name)
    index = ingest_folder(tmp_path)
    assert index.labels is None
    assert index.class_names == []
    assert index.facts().num_classes is None
    assert index.facts().num_images == len(names)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train/cat/a", "train/dog/b", "Test/cat/c"], ["Test", "train"]),
        (["train/a", "test/b", "cover"], ["test", "train"]),
        (["ds/train/a", "ds/test/b"], ["ds/test", "ds/train"]),
        (["ds/inner/train/cat/a", "ds/inner/test/cat/b", "cover"], ["ds/inner/test"]),
        (["train/a", "test/b", "unlabeled/c"], ["test", "train"]),
        (["train/a", "val/b", "__MACOSX/c"], ["train", "val"]),
        (["train/a", "dev/b", "test/c"], ["dev", "test", "train"]),
        (["train/a", "holdout/b"], ["holdout", "train"]),
        (["train/a", "unlabeled/b"], ["train", "unlabeled"]),
        (["train2017/a", "val2017/b"], ["train2017", "val2017"]),
        (["train_images/a", "test_images/b"], ["test_images", "train_images"]),
        (["Train Images/a", "test-set/b"], ["Train Images", "test-set"]),
        (["trainImages/a", "TEST/b"], ["TEST", "trainImages"]),
        (["cifar10_train/a", "cifar10_test/b"], ["cifar10_test", "cifar10_train"]),
        (["train/a"], ["train"]),
        (["val/a", "test/b"], ["test", "val"]),
    ],
)
def test_folder_of_splits_is_refused(tmp_path: Path, names: list[str], splits: list[str]) -> None:
    for name in names:
        picture(tmp_path / f"{name}.png")
    refusal = r"is divided into splits.*register each as a data set of its own"
    with pytest.raises(ValueError, match=refusal) as raised:
        ingest_folder(tmp_path)
    for split in splits:
        assert split in str(raised.value).partition(";")[0].partition("splits: ")[2].split(", ")
        assert len(ingest_folder(tmp_path / split)) > 0
    if "train" in splits:
        assert "such as with --split train " in str(raised.value)


@pytest.mark.parametrize(
    "names",
    [
        ["bus", "car", "train"],
        ["bullet_train", "test_tube"],
        ["train", "test_tube", "dog"],
        ["test", "owl"],
        ["val", "owl"],
        ["strain", "contest"],
        ["train_red", "train_blue"],
    ],
)
def test_classes_may_be_named_like_splits(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        picture(tmp_path / name / "a.png")
    assert ingest_folder(tmp_path).class_names == sorted(names)


def test_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the location is empty"):
        ingest_folder("")
    assert len(ingest_folder(".")) == 1


def test_sizes_are_upright_and_the_median_is_of_the_shorter_side(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (40, 10))
    picture(tmp_path / "b.png", (12, 50))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 32)).save(tmp_path / "c.jpg", exif=exif)
    index = ingest_folder(tmp_path)
    assert index.sizes.tolist() == [[40, 10], [12, 50], [32, 64]]
    assert index.facts().median_size == 12


def test_broken_files_are_skipped_and_listed(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "good.png")
    for mode in ("L", "CMYK"):
        picture(tmp_path / "dog" / f"{mode}.tif", mode=mode)
    Image.fromarray(np.full((9, 9), 40000, np.uint16)).save(tmp_path / "dog" / "deep.png")
    whole = picture(tmp_path / "whole.jpg", (200, 200)).read_bytes()
    (tmp_path / "whole.jpg").unlink()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (broken / "empty.png").touch()
    (broken / "text.png").write_text("this is not a picture\n")
    os.mkfifo(broken / "pipe.png")
    (broken / "gone.png").symlink_to("nothing.png")
    index = ingest_folder(tmp_path)
    assert index.paths == ["cat/good.png", "dog/CMYK.tif", "dog/L.tif", "dog/deep.png"]
    assert index.class_names == ["cat", "dog"]  # a class with only broken images is dropped
    skip_reasons = reasons(index)
    assert list(skip_reasons) == sorted(skip_reasons)
    assert skip_reasons["broken/truncated.jpg"].startswith("the image is damaged")
    assert skip_reasons["broken/empty.png"] == "the file is empty"
    assert skip_reasons["broken/text.png"] == "the content is not an image of a known format"
    assert skip_reasons["broken/pipe.png"] == "it is not a regular file"
    assert skip_reasons["broken/gone.png"] == "it is a link to something that does not exist"
    assert len(skip_reasons) == 5
    assert sum(count for _, count in index.pixels.kinds) == len(index)


def test_links_out_of_folder_are_skipped(tmp_path: Path) -> None:
    outside = picture(tmp_path / "outside" / "secret.png")
    root = tmp_path / "root"
    inside = picture(root / "real.png")
    (root / "out.png").symlink_to(outside)
    (root / "up.png").symlink_to(Path("..") / "outside" / "secret.png")
    (root / "folder").symlink_to(outside.parent)
    (root / "loop").symlink_to(root)
    (root / "circle.png").symlink_to("circle.png")
    (root / "alias.png").symlink_to(inside.name)
    index = ingest_folder(root)
    assert index.paths == ["alias.png", "real.png"]
    skip_reasons = reasons(index)
    leads_out = (
        "it is a link that leads out of the data set's folder; --follow-links reads such links"
    )
    assert skip_reasons["out.png"] == skip_reasons["up.png"] == skip_reasons["folder"] == leads_out
    assert skip_reasons["loop"] == "it is a link to a folder, and such links are not followed"
    assert "circle.png" in skip_reasons
    # The root itself may be a link.
    (tmp_path / "alias").symlink_to(root)
    assert ingest_folder(tmp_path / "alias").paths == index.paths


def test_folder_must_be_allowed(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    picture(data / "birds" / "a.png")
    picture(secret / "a.png")
    (data / "out").symlink_to(secret)
    (data / "in").symlink_to(data / "birds")
    (data / "birds" / "b.png").symlink_to(secret / "a.png")
    index = ingest_folder(data / "in", allowed=ReadableFolders([tmp_path / "other", data]))
    assert (index.root, index.paths) == (data / "birds", ["a.png"])
    assert "leads out of" in reasons(index)["b.png"]
    for folder in (secret, data / "out", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="resolves to a path outside the folders"):
            ingest_folder(folder, allowed=ReadableFolders([data]))


def test_link_to_the_services_own_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    own = picture(tmp_path / ".dasl" / "secret.png")
    image = picture(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to(own)
    allowed = ReadableFolders(excluded=[own.parent])
    index = ingest_folder(tmp_path, allowed=allowed)
    assert (index.paths, [*reasons(index)]) == (["a.png"], ["b.png"])
    image.unlink()
    image.symlink_to(own)
    with pytest.raises(ValueError, match="outside the folders"):
        index.decode(0, 3)


@pytest.mark.parametrize("swapped", ["the image", "its folder", "the data set's folder"])
def test_link_changed_after_ingest_is_not_followed(tmp_path: Path, swapped: str) -> None:
    picture(tmp_path / "secret" / "owl" / "a.png")
    root = tmp_path / "birds"
    image = picture(root / "owl" / "a.png")
    index = ingest_folder(root)
    assert (index.root / index.paths[0]) == image
    place = {"the image": image, "its folder": image.parent, "the data set's folder": root}[swapped]
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "secret" / place.relative_to(root))
    with pytest.raises(ValueError, match="leads out of the data set's folder"):
        index.decode(0, 3)


def test_endings_of_ignored_files_stay_few() -> None:
    ignored = IgnoredFiles()
    for ending in (*range(100, 160), "x" * 30, "MP4"):
        ignored.add(f"file.{ending}")
    endings = ignored.endings
    assert (endings.total(), len(endings)) == (62, 51)
    assert endings["other endings"] >= 11


def test_folder_without_images_names_endings_and_the_way_to_use_a_list(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.mp4", "README"):
        (tmp_path / name).touch()
    ignored = r"2 \.csv \(a\.csv, \.\.\.\), 1 without an ending \(README\), 1 \.mp4 \(c\.mp4\)"
    expected = f"4 other files ignored: {ignored}; expected files that end in "
    with pytest.raises(ValueError, match=expected + ".*Register an archive, list or table by its"):
        ingest_folder(tmp_path)


def test_names_that_are_not_utf8_are_listed_readably(tmp_path: Path) -> None:
    picture(tmp_path / "schön.png")
    name = os.fsencode(tmp_path) + b"/bad\xff.png"
    try:
        Path(os.fsdecode(name)).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    index = ingest_folder(tmp_path)
    assert index.paths == ["schön.png"]
    assert reasons(index) == {"bad\\xff.png": "its name is not valid UTF-8"}
    json.dumps(index.report(), ensure_ascii=False).encode()


def test_unreadable_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "locked" / "b.png")
    scan = os.scandir

    def guarded(path: Path) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    index = ingest_folder(tmp_path)
    assert index.paths == ["a.png"]
    assert reasons(index) == {"locked": "the folder cannot be read: Permission denied"}


def test_folders_without_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent does not exist; expected a folder of images"):
        ingest_folder(tmp_path / "absent")
    file = picture(tmp_path / "file.png")
    with pytest.raises(ValueError, match=r"file\.png is a file; expected a folder"):
        ingest_folder(file)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        ValueError, match=r"empty holds no usable image; expected files that end in .*, jpg, "
    ):
        ingest_folder(empty)
    # Endings are named only where they are the reason.
    (empty / "a.png").touch()
    (empty / "a.txt").touch()
    message = r"1 skipped, such as a\.png \(the file is empty\); 1 other file ignored: 1 \.txt \(a\.txt\)\. R"
    with pytest.raises(ValueError, match=message):
        ingest_folder(empty)
    with pytest.raises(ValueError, match="contains a null character"):
        ingest_folder("bad\0name")


def test_order_does_not_depend_on_threads(tmp_path: Path) -> None:
    for number in range(70):
        picture(tmp_path / f"{number * 37 % 100}.png", (number + 2, 5))
    one, four = ingest_folder(tmp_path, workers=1), ingest_folder(tmp_path, workers=4)
    assert one.paths == four.paths == sorted(one.paths)
    assert (one.sizes == four.sizes).all()


def test_index_survives_saving(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/b.png"):
        picture(tmp_path / "images" / name)
    (tmp_path / "images" / "dog" / "c.png").touch()
    index = ingest_folder(tmp_path / "images")
    index.save(tmp_path / "index")
    loaded = DatasetIndex.load(tmp_path / "index")
    assert loaded.facts() == index.facts()
    assert loaded.report() == index.report()
    for field in ("source", "paths", "class_names", "skipped", "unused", "pixels"):
        assert getattr(loaded, field) == getattr(index, field)
    for field in ("labels", "sizes", "locations"):
        assert (getattr(loaded, field) == getattr(index, field)).all()
    assert (loaded.root / loaded.paths[1]) == tmp_path / "images" / "dog" / "b.png"
    before = (tmp_path / "index").read_bytes()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["again", "images", "index"]


def test_report_is_cut_but_counts_all(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"class-{number}" / "a.png")
    for number in range(5):
        (tmp_path / f"broken{number}.png").touch()
    index = ingest_folder(tmp_path)
    report = index.report(limit=2)
    assert (report["num_images"], report["num_skipped"]) == (3, 5)
    assert report["class_names"] == index.class_names[:2] == ["class-0", "class-1"]
    assert report["skipped"] == [
        {"path": f"broken{number}.png", "reason": "the file is empty"} for number in range(2)
    ]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([np.uint8], "uint8"),
        ([np.uint16], "uint16"),
        ([np.int16], "int16"),
        ([np.float32], "float32"),
        ([np.uint8, np.uint16], "uint16"),
        ([np.int16, np.float32], "float32"),
    ],
)
def test_data_set_has_the_smallest_type_that_holds_all_images(
    tmp_path: Path, dtypes: list[type], expected: str
) -> None:
    for number, dtype in enumerate(dtypes):
        values = np.arange(64).reshape(8, 8) * (257 if dtype is np.uint16 else 1)
        np.save(tmp_path / f"{number}.npy", values.astype(dtype))
    index = ingest_folder(tmp_path)
    assert index.pixels.dtype == index.facts().dtype == expected
    assert len(index) == len(dtypes)
    assert bool(index.warnings) is (len(dtypes) > 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
@pytest.mark.parametrize(
    ("bands", "photometric", "extra", "expected"),
    [
        (4, "rgb", ["unassalpha"], 3),
        (4, "rgb", ["assocalpha"], 3),
        (2, "minisblack", ["unassalpha"], 3),
        (4, "rgb", ["unspecified"], 4),
        (4, "minisblack", ["unspecified"] * 3, 4),
        (2, "minisblack", ["unspecified"], 2),
        (1, "minisblack", [], 3),
    ],
)
def test_a_band_is_opacity_only_if_the_file_says_so(
    tmp_path: Path, dtype: type, bands: int, photometric: str, extra: list[str], expected: int
) -> None:
    random = np.random.default_rng(0)
    values: np.ndarray = random.integers(0, 200, (8, 8, bands)).astype(dtype)
    tifffile.imwrite(
        tmp_path / "a.tif",
        values if bands > 1 else values[..., 0],
        photometric=photometric,
        extrasamples=extra or None,
        planarconfig="contig" if bands > 1 else None,
    )
    index = ingest_folder(tmp_path)
    # Opacity of signed values and floats has no full range, and is a band as any other.
    if dtype in (np.int16, np.float32):
        expected = 3 if bands == 1 else bands
    assert (len(index), index.facts().bands) == (1, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("bands", [2, 4])
def test_arrays_have_no_opacity_and_are_trained_on_as_they_are(
    tmp_path: Path, bands: int, dtype: type
) -> None:
    values: np.ndarray = np.arange(64 * bands).reshape(8, 8, bands).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    index = ingest_folder(tmp_path)
    assert (len(index), index.facts().bands) == (1, bands)
    facts = index.facts().model_copy(update={"num_images": 100})
    backbone = resolve(JobSpec.model_validate({"dataset": "birds"}), facts).backbone
    assert backbone.in_channels == len(backbone.mean) == bands
    assert (index.decode(0, backbone.in_channels) == values).all()


PAGES = ramp(4, "uint16", 65535).transpose(2, 0, 1)
FRAMES = as_dicom(PAGES, NumberOfFrames=4)
GRAY: dict[str, Any] = {"photometric": "minisblack", "metadata": None}


@pytest.mark.parametrize(
    ("files", "bands", "warning"),
    [
        ({"a.tif": by_tifffile(PAGES, **GRAY)}, 3, "1 file has 4 pages or frames of equal size"),
        ({"a.dcm": FRAMES}, 3, "1 file has 4 pages or frames of equal size"),
        (
            {"a.dcm": FRAMES, "b.tif": by_tifffile(PAGES[:2], **GRAY), "c.tif": by_tifffile(PAGES[0])},
            3,
            "2 files have 2 to 4 pages or frames of equal size",
        ),
        ({"a.tif": by_tifffile(PAGES)}, 3, "1 TIFF file marks its last band as opacity"),
        (
            {f"{name}.tif": by_tifffile(PAGES.transpose(1, 2, 0) // 257) for name in "ab"},
            3,
            "2 TIFF files mark their last band as opacity",
        ),
        ({"a.tif": by_tifffile(PAGES, ome=True, metadata={"axes": "CYX"})}, 4, None),
        ({"a.tif": by_pillow(Image.fromarray(PAGES[0]), "TIFF", save_all=True,
                             append_images=[Image.new("I;16", (16, 16))])}, 3, None),
    ],
    ids=["pages", "frames", "several", "planes", "alpha", "ome", "thumbnail"],
)  # fmt: skip
def test_pages_and_bands_that_are_not_used_are_reported(
    tmp_path: Path, files: dict[str, bytes], bands: int, warning: str | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    index = ingest_folder(tmp_path)
    assert index.facts().bands == bands
    index.save(tmp_path / "index")
    for each in (index, DatasetIndex.load(tmp_path / "index")):
        if warning is None:
            assert each.warnings == []
        else:
            assert each.warnings[0].startswith(warning)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "CMYK"])
def test_gray_color_and_transparency_are_three_bands(tmp_path: Path, mode: str) -> None:
    picture(tmp_path / f"a.{'tif' if mode == 'CMYK' else 'png'}", mode=mode)
    assert ingest_folder(tmp_path).facts().bands == 3


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("bands", [1, 3, 5])
def test_mean_and_deviation_are_those_of_all_pixels_of_any_type(
    tmp_path: Path, dtype: str, bands: int
) -> None:
    random = np.random.default_rng(bands)
    ends = (0, 1) if dtype == "float32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    images = [random.uniform(*ends, (30 + n, 20, bands)).astype(dtype) for n in range(4)]
    for number, image in enumerate(images):
        np.save(tmp_path / f"{number}.npy", image)
    facts = ingest_folder(tmp_path).facts()
    pixels = np.concatenate([image.reshape(-1, bands).astype(np.float64) for image in images])
    copies = 3 if bands == 1 else 1  # gray images are read as color
    assert facts.mean == pytest.approx((*pixels.mean(axis=0),) * copies, rel=1e-6)
    assert facts.std == pytest.approx((*pixels.std(axis=0),) * copies, rel=1e-6)
    assert facts.quantiles is not None
    extremes = facts.quantiles[0], facts.quantiles[-1]
    assert extremes == pytest.approx((pixels.min(), pixels.max()), rel=1e-6)
    assert list(facts.quantiles) == sorted(facts.quantiles)


SCALES = np.array([1, 10, 100, 1000, 10_000])


@pytest.mark.parametrize("scales", [SCALES, np.repeat(SCALES, 10)[:, None]])
def test_quantiles_are_of_all_bands_and_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scales: np.ndarray
) -> None:
    random = np.random.default_rng(0)
    images = [random.random((60, 50, scales.shape[-1])) * scales for _ in range(8)]
    for number, image in enumerate(images):
        np.save(tmp_path / f"{number}.npy", image.astype(np.float32))
    # A fiftieth of all values: in each image every fiftieth, if they are evenly spaced.
    monkeypatch.setattr("dasl_core.data.sample._VALUES", sum(map(np.size, images)) // 50)
    facts = ingest_folder(tmp_path).facts()
    assert facts.quantiles is not None
    everything = np.sort(np.concatenate([image.ravel() for image in images]))
    ranks = np.searchsorted(everything, facts.quantiles) / len(everything)
    # Six standard deviations of a median of so many random values.
    tolerance = 3 / np.sqrt(len(everything) / 50)
    np.testing.assert_allclose(ranks, QUANTILES, atol=tolerance)


def test_equal_and_similar_images_are_reported(tmp_path: Path) -> None:
    small = np.random.default_rng(0).integers(0, 256, (8, 9), dtype=np.uint8)
    scene = Image.fromarray(small).resize((90, 80), Image.Resampling.BICUBIC)
    scene.save(tmp_path / "a.png")
    scene.save(tmp_path / "b.png")
    scene.save(tmp_path / "smaller.jpg", quality=70)
    picture(tmp_path / "other.png", (90, 80))
    report = ingest_folder(tmp_path).report()["duplicates"]
    assert report["equal"]["examples"] == [["a.png", "b.png"]]
    assert report["similar"]["examples"] == [["a.png", "b.png", "smaller.jpg"]]
    assert (report["similar"]["checked"], report["similar"]["superfluous"]) == (4, 2)


INDEX_ARRAYS: dict[str, np.ndarray] = {
    "labels": np.array([0, 1], np.int32),
    "sizes": np.full((2, 2), 20, np.int32),
    "places": np.zeros((2, 4), np.int64),
    "checksums": np.zeros(2, np.int32),
    "duplicate_of": np.zeros(2, np.int32),
    "groups": np.frombuffer(b"p1p2", np.uint8),
    "group_ends": np.array([2, 4]),
}
INDEX_ABOUT: dict[str, Any] = {
    "format": 1,
    "source": {"kind": "folder", "uri": "/images", "root": "/images", "files": [], "options": {}},
    "class_names": ["cat", "dog"],
    "skipped": [["cat/c.png", "the file is empty"]],
    "pixels": asdict(PixelFacts()),
    "duplicates": {},
    "unused": [],
    "warnings": [],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"class_names": [1, 2]}, "its class_names must be strings"),
        ({"unused": [1]}, "its unused must be strings"),
        ({"warnings": [1]}, "its warnings must be strings"),
        ({"paths": ["../../etc/passwd.png", "b"]}, "names an image outside its folder"),
        ({"paths": ["/etc/passwd.png", "b"]}, "names an image outside its folder"),
        ({"paths": ["a.png"]}, "its lists differ in length"),
        ({"checksums": np.zeros(3, np.int32)}, "its lists differ in length"),
        ({"format": 99}, "its format is 99, expected 1"),
        ({"skipped": [[1, "reason"]]}, "its skipped must be strings"),
        ({"skipped": [["path"]]}, "is not a data set index"),
        ({"labels": np.array([0, 2], np.int32)}, "its labels must be numbers from 0 to 1"),
        ({"labels": np.array([0, -1], np.int32)}, "its labels must be numbers from 0 to 1"),
        ({"labels": np.zeros(1, np.int32)}, "its lists differ in length"),
        ({"sizes": np.array([[1, 2], [3, 0]], np.int32)}, "its sizes must be at least 1"),
        ({"duplicate_of": np.array([1, 1], np.int32)}, "its duplicates must name the first image"),
        ({"duplicate_of": np.array([0, -1], np.int32)}, "its duplicates must name the first image"),
        ({"duplicate_of": np.zeros(1, np.int32)}, "its duplicates must name the first image"),
        ({"group_ends": np.array([2, 5])}, "its groups are damaged"),
        ({"group_ends": np.array([4])}, "its lists differ in length"),
        ({"source": {"kind": "folder"}}, "is not a data set index"),
    ],
)
def test_index_with_wrong_content_is_refused(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    file = tmp_path / "index"
    content = {**INDEX_ARRAYS, **INDEX_ABOUT, "paths": ["cat/a.png", "dog/b.png"]}

    def save(content: dict[str, Any]) -> None:
        paths = Strings.pack(content["paths"])
        arrays = {name: content[name] for name in INDEX_ARRAYS}
        arrays |= {"paths": paths.data, "ends": paths.ends}
        write_arrays(file, arrays, {name: content[name] for name in INDEX_ABOUT})

    save(content)
    assert len(DatasetIndex.load(file)) == 2
    save(content | change)
    with pytest.raises(ValueError, match="index is not a data set index") as raised:
        DatasetIndex.load(file)
    assert expected in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000, b"\xff", b"{}"])
def test_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "index"
    picture(tmp_path / "images" / "a.png")
    ingest_folder(tmp_path / "images").save(file)
    index = file.read_bytes()
    flipped = index[:-1] + bytes([index[-1] ^ 1])
    for data in (content, index[:-1], flipped, index[: len(index) // 2]):
        file.write_bytes(data)
        with pytest.raises(ValueError, match="is not a data set index"):
            DatasetIndex.load(file)


def test_ingest_counts_the_images_found_and_decoded(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "notes.txt").write_text("ignored")
    calls: list[tuple[str, int, int]] = []
    ingest_folder(
        tmp_path, on_progress=lambda read, total, phase: calls.append((phase, read, total))
    )
    assert calls == [
        *(("listing", 0, found) for found in (1, 2, 3)),
        *(("headers", read, 3) for read in (0, 1, 2, 3)),
        *(("sample", decoded, 2) for decoded in (1, 2)),
        *(("comparison", compared, 2) for compared in (1, 2)),
    ]


@pytest.mark.parametrize(("free", "together"), [(0, 1), (4 * 2 * 50 * 40 * 20, 2), (1 << 40, 4)])
def test_images_decoded_together_fit_into_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, together: int
) -> None:
    """Threads that each held a large image took down the node, with the drivers of trainings on it."""
    for number in range(8):
        picture(tmp_path / f"{number}.png", size=(50, 40))
    lock, enough = threading.Lock(), threading.Event()
    loading = most = 0
    load = ImageFile.ImageFile.load

    def counted(image: ImageFile.ImageFile) -> object:
        nonlocal loading, most
        with lock:
            loading += 1
            most = max(most, loading)
            if loading == together:
                enough.set()
        assert enough.wait(60), "fewer threads decode than fit"
        try:
            return load(image)
        finally:
            with lock:
                loading -= 1

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    monkeypatch.setattr(sample, "decoding_budget", lambda: free // 4)
    assert len(ingest_folder(tmp_path, workers=4)) == 8
    assert most == together
