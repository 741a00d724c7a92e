"""Labels of images, and why there are none."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dasl_core.data.classes import label_entries, why_unlabeled
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.sources import Entry, Listing, SourceRecord
from dasl_core.spec.source import SourceOptions

CLASSES = [f"{name}/{number}.png" for name in ("owl", "wren") for number in range(3)]
PHOTOS = [f"{number}.png" for number in range(6)]
SPLIT = [f"train/{key}" for key in [*CLASSES, "logo.png"]]
FOLDERS = (
    "{} outside of the 2 folders ({}). To use the folders as labels, move or remove these images and read the data set "
    "again (dasl datasets refresh)."
)
LIST = " has none. A list (.csv) with the columns path and label has them."
UNREAD = "all images are in one folder. Files that may have labels are not read: {}. A list (.csv) is registered by its own path."
NO_COLUMN = "no column is called label, or it is empty"


@pytest.mark.parametrize(
    ("kind", "keys", "options", "expected"),
    [
        ("folder", PHOTOS, {}, "all images are in one folder."),
        ("zip", CLASSES[:3], {}, "all images are in one folder."),
        ("tar", ["a.png", "small/a.png"], {}, "all images are in one folder, or in one inside."),
        ("folder", CLASSES, {"labels": "none"}, "the data set was registered without them."),
        ("folder", CLASSES, {"classes": ("owl",)}, "one class was chosen."),
        ("tar", [*CLASSES, "x.png"], {}, FOLDERS.format("1 image of 7 is", "x.png")),
        ("folder", SPLIT, {"split": "train"}, FOLDERS.format("1 image of 7 is", "train/logo.png")),
        (
            "folder",
            [*PHOTOS, *CLASSES],
            {},
            FOLDERS.format("6 images of 12 are", "0.png, 1.png, 2.png, 3.png, 4.png, ..."),
        ),
        ("npy", PHOTOS, {}, f"an array{LIST}"),
        ("paths", CLASSES, {}, f"a list of paths{LIST}"),
        ("list", CLASSES, {}, f"{NO_COLUMN}."),
        ("parquet", PHOTOS, {"label_column": "kind"}, "the column kind is empty."),
    ],
)
def test_reason_for_no_labels(
    kind: str, keys: list[str], options: dict[str, Any], expected: str
) -> None:
    record = SourceRecord(kind, "birds", "birds", options=SourceOptions.model_validate(options))
    entries = [Entry(key) for key in keys]
    labels, names, _ = label_entries(record, entries)
    assert (labels, names) == (None, [])
    assert f"{why_unlabeled(record, entries, Listing(entries, []))}." == expected


def test_text_about_an_image_is_no_class() -> None:
    record = SourceRecord("list", "birds.csv", "birds.csv", options=SourceOptions())
    entries = [Entry(f"{number}.png", label="a long caption " * number) for number in (1, 20)]
    with pytest.raises(
        ValueError, match=r"label of 300 characters.*has at most 255.*--label-column"
    ):
        label_entries(record, entries)


def test_classes_have_a_bounded_text() -> None:
    SourceOptions(classes=tuple(f"n{number:08d}" for number in range(22_000)))
    with pytest.raises(ValidationError, match=r"has too much text.*at most 524288 in all"):
        SourceOptions(classes=tuple(f"{number:0255d}" for number in range(3_000)))


@pytest.mark.parametrize("missing", [None, ""])
def test_images_without_a_label_are_counted_and_named(missing: str | None) -> None:
    record = SourceRecord("parquet", "birds", "birds")
    entries = [Entry(f"{n}.png", label="cat" if n < 2 else missing) for n in range(9)]
    assert label_entries(record, entries)[0] is None
    assert why_unlabeled(record, entries, Listing(entries, [])) == (
        "7 images of 9 have no label (2.png, 3.png, 4.png, 5.png, 6.png, ...). Label or remove them and "
        "refresh the data set"
    )
    one = [Entry("a.png", label="owl"), Entry("b.png", label="owl")]
    assert why_unlabeled(record, one, Listing(one, [])) == "all images are of one class, owl"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["fine_label", "id", "Species"], "fine_label, Species"),
        (["id", "width"], "id, width"),
    ],
)
def test_columns_that_may_be_labels_are_named(columns: list[str], expected: str) -> None:
    entries = [Entry("a.png")]
    listing = Listing(entries, [], unused_columns=columns)
    said = why_unlabeled(SourceRecord("parquet", "b", "b"), entries, listing)
    assert said == (
        f"{NO_COLUMN}. Call the column of the labels label, or name it, such as {expected}, with dasl datasets add "
        "--label-column"
    )


def test_unread_files_beside_images_are_named(tmp_path: Path) -> None:
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "metadata.csv").write_text(
        "file_name,label,place,\na.npy,cat,x,\nb.npy,dog,y,\n./c.npy,dog,,\n"
    )
    (tmp_path / "clip.mp4").touch()
    index = ingest_folder(tmp_path)
    files = "3 .json (a.json, ...), 1 .csv (metadata.csv)"
    expected = [
        f"No labels: {UNREAD.format(files)}",
        f"Ignored, as their endings are not those of images: {files}, 1 .mp4 (clip.mp4).",
    ]
    index.save(tmp_path / "index")
    for each in (index, DatasetIndex.load(tmp_path / "index")):
        assert each.report()["unused"] == expected
    labeled = ingest_folder(tmp_path / "metadata.csv")
    report = labeled.report()
    assert (report["class_names"], report["class_images"]) == (["cat", "dog"], [1, 2])
    assert report["unused"] == ["Columns that are not used: place."]


def test_class_names_are_of_one_unicode_form(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Möwe") for form in ("NFC", "NFD"))
    record = SourceRecord("list", "b", "b", options=SourceOptions(classes=(decomposed, "owl")))
    entries = [Entry("a.png", label=name) for name in (composed, decomposed, "owl", "x")]
    labels, names, positions = label_entries(record, entries)
    assert (names, positions) == ([composed, "owl"], [0, 1, 2])
    assert np.asarray(labels).tolist() == [0, 0, 1]
    for folder in (decomposed, "owl"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert ingest_folder(tmp_path).class_names == [composed, "owl"]
    (tmp_path / composed).mkdir(exist_ok=True)
    np.save(tmp_path / composed / "b.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
    with pytest.raises(ValueError, match=r"has two folders 'Möwe', .* only in their Unicode form"):
        ingest_folder(tmp_path)


def test_images_that_change_their_class_are_counted(tmp_path: Path) -> None:
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
    indices = []
    for rows in (
        "path,label\na.npy,cat\nb.npy,dog\nc.npy,dog",
        "path,label\na.npy,cat\nb.npy,cat\nc.npy,dog",
        "path\na.npy\nb.npy",
    ):
        (tmp_path / "list.csv").write_text(rows)
        indices.append(ingest_folder(tmp_path / "list.csv"))
    first, second, third = indices
    kept = {"added": 0, "removed": 0, "changed": 0, "unchanged": 3}
    assert second.changes_since(first) == {**kept, "relabeled": 1}
    assert third.changes_since(first) == {**kept, "removed": 1, "unchanged": 2, "relabeled": 2}
