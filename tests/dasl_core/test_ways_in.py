"""Every format of image through every way in: each cell gives the pixels of the file itself."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest

from dasl_core.data.decode import decode, read_header
from dasl_core.data.opening import compute_checksum, open_image, open_unchanged
from dasl_core.data.sources import Entry, Source, find_source
from dasl_core.storage import open_system
from tests.dasl_core.image_files import as_tar, files_of_all_formats

FILES = dict(sorted(files_of_all_formats().items()))
# Its content does not tell the format of camera RAW, and a row of a table has no ending that does.
BY_CONTENT = {name: content for name, content in FILES.items() if not name.endswith(".dng")}
Way = Callable[[Path, dict[str, bytes]], str]


def as_folder(path: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (path / name).write_bytes(content)
    return str(path)


def as_list(path: Path, files: dict[str, bytes]) -> str:
    as_folder(path, files)
    (path / "list.csv").write_text("\n".join(["path", *files]))
    return str(path / "list.csv")


def in_tar(path: Path, files: dict[str, bytes]) -> str:
    (path / "images.tar").write_bytes(as_tar(files.items()))
    return str(path / "images.tar")


class Pipe(io.BytesIO):
    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


def as_zip(method: int, *, is_streamed: bool = False, is_zip64: bool = False) -> Way:
    def write(path: Path, files: dict[str, bytes]) -> str:
        file = Pipe() if is_streamed else io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, content in files.items():
                with archive.open(name, "w", force_zip64=is_zip64) as member:
                    member.write(content)
        (path / "images.zip").write_bytes(file.getvalue())
        return str(path / "images.zip")

    return write


def table(files: dict[str, bytes]) -> datasets.Dataset:
    images = [{"bytes": content, "path": None} for content in files.values()]
    features = datasets.Features({"image": datasets.Image()})
    return datasets.Dataset.from_dict({"image": images}, features=features)


def as_parquet(path: Path, files: dict[str, bytes]) -> str:
    table(files).to_parquet(path / "all.parquet", batch_size=7)
    return str(path / "all.parquet")


def as_saved_data_set(path: Path, files: dict[str, bytes]) -> str:
    table(files).save_to_disk(path / "saved")
    return str(path / "saved")


def outcome(source: Source, entry: Entry, content: bytes, name: str) -> str:
    """Read a header and pixels as ingest and training do; return "equal", or what is wrong."""
    expected_header = read_header(io.BytesIO(content), name)
    bands, dtype = expected_header.bands, expected_header.dtype
    expected = decode(io.BytesIO(content), name, bands, dtype)
    try:
        with open_image(source, entry, header=True) as file:
            checksum = compute_checksum(file, inflates=source.inflates)
            header = read_header(file, entry.key)
        with open_unchanged(source, entry, checksum) as file:
            pixels = decode(file, entry.key, bands, dtype)
    except ValueError as error:
        return str(error)
    shape = (header.height, header.width, header.bands)
    if (pixels.shape, pixels.dtype.name) != (shape, header.dtype) or not pixels.flags.carray:
        return f"not as its header: {header}"
    is_equal = header._replace(checksum=0) == expected_header and np.array_equal(pixels, expected)
    return "equal" if is_equal else "other pixels"


def check(location: str, files: dict[str, bytes]) -> None:
    source = find_source(location).open()
    listing = source.list_entries(lambda found: None)
    assert (listing.skipped, listing.unused()) == ([], [])
    # A table's rows have no names; they are in the order of the files.
    entries = sorted(listing.entries, key=lambda entry: entry.key)
    assert len(entries) == len(files)
    outcomes = {
        name: outcome(source, entry, files[name], name)
        for name, entry in zip(files, entries, strict=True)
    }
    assert {name: found for name, found in outcomes.items() if found != "equal"} == {}


WAYS: dict[str, tuple[Way, dict[str, bytes]]] = {
    "folder": (as_folder, FILES),
    "list": (as_list, FILES),
    "tar": (in_tar, FILES),
    "stored zip": (as_zip(zipfile.ZIP_STORED), FILES),
    "deflated zip": (as_zip(zipfile.ZIP_DEFLATED), FILES),
    # The size of a member is behind its content.
    "streamed zip": (as_zip(zipfile.ZIP_DEFLATED, is_streamed=True), FILES),
    "zip64": (as_zip(zipfile.ZIP_DEFLATED, is_zip64=True), FILES),
    "parquet": (as_parquet, BY_CONTENT),
    "saved data set": (as_saved_data_set, BY_CONTENT),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_format_is_the_same_through_every_way_in(tmp_path: Path, way: str) -> None:
    write, files = WAYS[way]
    check(write(tmp_path, files), files)


@pytest.mark.parametrize("way", ["folder", "tar", "deflated zip", "parquet"])
def test_every_format_is_the_same_from_an_object_store(
    tmp_path: Path, s3_root: str, way: str
) -> None:
    write, files = WAYS[way]
    location = write(tmp_path, files)
    system, root = open_system(s3_root)
    for file in tmp_path.iterdir():
        system.pipe_file(f"{root}/{file.name}", file.read_bytes())
    is_folder = location == str(tmp_path)
    check(s3_root if is_folder else f"{s3_root}/{Path(location).name}", files)
