"""Labels that cannot be used are reported."""

from pathlib import Path

import numpy as np
import pytest

from dasl_core.data.classes import label_entries, label_warnings
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.sources import Entry, SourceRecord
from dasl_core.spec.source import SourceOptions

RECORD = SourceRecord("parquet", "pictures", "pictures")


@pytest.mark.parametrize("missing", [None, ""])
def test_images_without_a_label_are_counted_and_named(missing: str | None) -> None:
    entries = [Entry(f"{n}.png", label="cat" if n < 2 else missing) for n in range(9)]
    assert label_entries(RECORD, entries)[0] is None
    assert label_warnings(RECORD, entries) == [
        "7 images of 9 have no label (2.png, 3.png, 4.png, 5.png, 6.png, ...), so that the data set has none. "
        "Label or remove them and refresh the data set, or register it without labels"
    ]


def test_no_warning_where_no_label_is_lost() -> None:
    labeled = [Entry("a.png", label="cat"), Entry("b.png", label="dog")]
    assert label_warnings(RECORD, labeled) == []
    assert label_warnings(RECORD, [Entry("a.png"), Entry("b.png")]) == []
    without = SourceRecord("parquet", "p", "p", options=SourceOptions(labels="none"))
    assert label_warnings(without, [*labeled, Entry("c.png")]) == []


def test_few_images_beside_folders_are_the_reason_for_no_labels() -> None:
    folder = SourceRecord("folder", "birds", "birds")
    classes = [Entry(f"{name}/{n}.png") for name in ("owl", "wren") for n in range(3)]
    assert label_warnings(folder, classes) == []
    mixed = [*classes, Entry("logo.png")]
    assert label_entries(folder, mixed)[0] is None
    assert label_warnings(folder, mixed) == [
        "1 image of 7 is outside of the 2 folders (logo.png), so the folders are not used as labels. "
        "To use them, move or remove these images and read the data set again (dasl datasets refresh)"
    ]
    photos = [Entry(f"{n}.png") for n in range(6)]
    assert label_warnings(folder, [*photos, *classes]) == []
    assert label_warnings(folder, [*classes[:3], photos[0]]) == [], "one folder is no class"
    of_split = SourceRecord("folder", "b", "b", options=SourceOptions(split="train"))
    in_split = [Entry(f"train/{entry.key}") for entry in mixed]
    assert "1 image of 7 is outside of the 2 folders" in label_warnings(of_split, in_split)[0]
    without = SourceRecord("folder", "b", "b", options=SourceOptions(labels="none"))
    assert label_warnings(without, mixed) == []


def test_the_warning_is_of_the_report_and_stays_in_the_index(tmp_path: Path) -> None:
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", np.arange(64, dtype=np.uint8).reshape(8, 8))
    (tmp_path / "list.csv").write_text("path,label\na.npy,cat\nb.npy,dog\nc.npy,\n")
    index = ingest_folder(tmp_path / "list.csv")
    index.save(tmp_path / "index")
    for each in (index, DatasetIndex.load(tmp_path / "index")):
        (warning,) = each.report()["warnings"]
        assert warning.startswith("1 image of 3 has no label (c.npy), ")
