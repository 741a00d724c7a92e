"""An ingest after another one: it reads only what is new, and finds what a first ingest would."""

import errno
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dasl_core.data import headers
from dasl_core.data.decode import Header, read_header
from dasl_core.data.decode.reasons import describe_failure
from dasl_core.data.headers import HeaderTable, identify
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import Ingested, Previous, ingest
from dasl_core.data.sources import Entry, Skipped


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose headers were read."""
    names: list[str] = []

    def record(file: BinaryIO, name: str) -> Header:
        names.append(name)
        return read_header(file, name)

    monkeypatch.setattr(headers, "read_header", record)
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for number in range(6):
        picture(root / f"class{number % 2}" / f"{number}.png", number)
    return root


def picture(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20 + gray, 10), (gray, 2 * gray, 3 * gray)).save(path)


def saved(index: DatasetIndex, path: Path) -> bytes:
    index.save(path)
    return path.read_bytes()


def after(first: Ingested) -> Previous:
    return Previous(first.headers, first.index)


def test_refresh_of_unchanged_images_opens_none(folder: Path, read: list[str]) -> None:
    first = ingest(folder)
    assert len(read) == 6
    read.clear()
    again = ingest(folder, previous=after(first))
    assert (again.is_unchanged, read) == (True, [])
    assert again.index.paths == first.index.paths


def test_refresh_reads_new_and_changed_images_only(
    folder: Path, tmp_path: Path, read: list[str]
) -> None:
    first = ingest(folder)
    picture(folder / "class0" / "new.png", 50)
    picture(folder / "class1" / "1.png", 60)
    (folder / "class1" / "3.png").unlink()
    os.utime(folder / "class0" / "0.png", ns=(1, 1))
    read.clear()
    again = ingest(folder, previous=after(first))
    assert sorted(read) == ["class0/0.png", "class0/new.png", "class1/1.png"]
    assert not again.is_unchanged
    assert again.index.changes_since(first.index) == {
        "added": 1,
        "removed": 1,
        "changed": 2,
        "unchanged": 3,
        "relabeled": 0,
    }
    fresh = ingest(folder)
    assert saved(again.index, tmp_path / "again") == saved(fresh.index, tmp_path / "fresh")
    assert again.headers.outcome == fresh.headers.outcome != first.headers.outcome


@pytest.mark.parametrize("renamed", [True, False])
def test_file_replaced_with_the_same_size_and_time_is_found(
    folder: Path, read: list[str], renamed: bool
) -> None:
    first = ingest(folder)
    file, other = folder / "class0" / "0.png", folder.parent / "other"
    before, content = file.stat(), file.read_bytes()
    changed = content[:-30] + bytes(18) + content[-12:]
    while True:  # until the clock of the file system has moved on
        other.write_bytes(changed)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        if renamed:
            other.rename(file)
        else:
            file.write_bytes(changed)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        now = file.stat()
        if now.st_ctime_ns != before.st_ctime_ns:
            break
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    read.clear()
    again = ingest(folder, previous=after(first))
    assert read == ["class0/0.png"]
    assert not again.is_unchanged


def test_skipped_files_are_tried_again(folder: Path, read: list[str]) -> None:
    (folder / "class0" / "broken.png").write_bytes(b"no image")
    first = ingest(folder)
    read.clear()
    again = ingest(folder, previous=after(first))
    assert read == ["class0/broken.png"]
    assert again.is_unchanged, "it is as broken as before"


def test_images_that_a_passing_error_hid_are_decoded_again(folder: Path) -> None:
    first = ingest(folder)
    reason = describe_failure(OSError(errno.EIO, "Input/output error"))
    first.index.skipped.append(Skipped("class0/x.png", reason))
    assert not ingest(folder, previous=after(first)).is_unchanged


def test_lost_contact_sheet_is_drawn_again(folder: Path) -> None:
    (folder / "class0" / "4.png").write_bytes((folder / "class0" / "4.png").read_bytes()[:-30])
    first = ingest(folder)
    assert [each.path for each in first.index.skipped] == ["class0/4.png"]
    assert ingest(folder, previous=after(first)).contact_sheet is None
    lost = Previous(first.headers, first.index, has_contact_sheet=False)
    again = ingest(folder, previous=lost)
    assert again.is_unchanged
    assert first.contact_sheet is not None
    assert again.contact_sheet is not None
    assert again.contact_sheet.report() == first.contact_sheet.report()
    assert again.contact_sheet.jpeg() == first.contact_sheet.jpeg()


def test_archive_added_before_others_leaves_their_headers_known(
    tmp_path: Path, folder: Path, read: list[str]
) -> None:
    for name in ("b.tar", "c.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            archive.add(folder / "class0", name)
    first = ingest(tmp_path / "*.tar")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder / "class1" / "1.png", "1.png")
    read.clear()
    again = ingest(tmp_path / "*.tar", previous=after(first))
    assert read == ["a/1.png"]
    assert again.index.changes_since(first.index)["unchanged"] == len(first.index)


def test_headers_are_handed_out_in_chunks_and_read_once(
    folder: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "CHUNK", 2)
    chunks: list[HeaderTable] = []

    class Killed(Exception): ...

    def keep(chunk: HeaderTable) -> None:
        chunks.append(chunk)
        if len(chunks) == 2:
            raise Killed

    with pytest.raises(Killed):
        ingest(folder, on_headers=keep)
    assert [len(chunk) for chunk in chunks] == [2, 2]
    read.clear()
    progress: list[tuple[int, int, str]] = []
    resumed = ingest(
        folder,
        previous=Previous(HeaderTable.merged(chunks)),
        on_progress=lambda *each: progress.append(each),
    )
    assert sorted(read) == ["class1/3.png", "class1/5.png"]
    assert [each for each in progress if each[2] == "headers"] == [
        (read, 6, "headers") for read in (4, 5, 6)
    ], "what is known is read"
    assert saved(resumed.index, tmp_path / "a") == saved(ingest(folder).index, tmp_path / "b")


_HEADERS = st.builds(
    Header,
    st.integers(1, 60_000),
    st.integers(1, 60_000),
    st.integers(1, 9),
    st.sampled_from(["uint8", "uint16", "int16", "float32"]),
    st.sampled_from(["PNG", "JPEG", "DICOM"]),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)


@settings(max_examples=20)
@given(st.lists(_HEADERS, max_size=20), st.integers(0, 20))
def test_stored_headers_are_found_by_image(
    tmp_path_factory: pytest.TempPathFactory, headers: Sequence[Header], split: int
) -> None:
    entries = [Entry(f"{number}.png", 5, number) for number in range(len(headers))]
    digests = identify(entries, [])
    parts = [
        HeaderTable.build(digests[:split], headers[:split], "first"),
        HeaderTable.build(digests[split:], headers[split:]),
    ]
    file = tmp_path_factory.getbasetemp() / "headers.safetensors"
    HeaderTable.merged(parts).save(file)
    stored = HeaderTable.load(file)
    changed = identify([each._replace(stamp=-1) for each in entries], [])
    both = np.concatenate([digests[::-1], changed])
    assert stored.find(both) == [*headers[::-1], *[None] * len(headers)]
    assert stored.outcome == "first"


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x08" + b"\0" * 15])
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="has no headers of images"):
        HeaderTable.load(tmp_path / "file")
