"""Sources: every kind lists the same images and opens each of them, and says what it skips."""

import io
import json
import os
import posixpath
import shutil
import socket
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.sources import SOURCES, Entry, Listing, SourceRecord, find_source
from dasl_core.data.sources.splits import file_split
from dasl_core.spec.locations import ReadableFolders
from dasl_core.spec.source import READ_OPTIONS, SourceOptions, unread_options
from dasl_core.standalone.images import print_warnings
from dasl_core.text import without_line
from tests.dasl_core.image_files import by_pillow

NAMES = ("cat/0.png", "cat/2.png", "dog/1.png", "dog/3.png")


def content(number: int) -> bytes:
    """Return a PNG file with one color."""
    return by_pillow(Image.fromarray(np.full((6, 8, 3), 10 * number, np.uint8)), "PNG")


def number_of(name: str) -> int:
    return int(Path(name).stem)


def folder(path: Path) -> Path:
    for name in NAMES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content(number_of(name)))
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def as_folder(path: Path) -> str:
    return str(folder(path / "images"))


def as_tar(path: Path) -> str:
    with tarfile.open(path / "images.tar", "w") as archive:
        archive.add(folder(path / "images"), ".")
    return str(path / "images.tar")


def as_webdataset(path: Path) -> str:
    folder(path / "images")
    for shard in range(2):
        with tarfile.open(path / f"images-{shard:03}.tar", "w") as archive:
            for number in range(2 * shard, 2 * shard + 2):
                add(archive, f"{number}.png", content(number))
                add(archive, f"{number}.cls", b"cat" if number % 2 == 0 else b"dog")
    return str(path / "images-{000..001}.tar")


def as_zip(path: Path) -> str:
    with zipfile.ZipFile(path / "images.zip", "w") as archive:
        for name in NAMES:
            method = zipfile.ZIP_DEFLATED if "cat" in name else zipfile.ZIP_STORED
            archive.writestr(name, content(number_of(name)), method)
    return str(path / "images.zip")


def as_csv(path: Path) -> str:
    folder(path / "images")
    rows = [f"images/{name},{name[:3]}" for name in NAMES]
    (path / "list.csv").write_text("\n".join(["path,label", *rows]))
    return str(path / "list.csv")


def table(path: Path) -> datasets.Dataset:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    images = [{"bytes": content(number), "path": None} for number in range(4)]
    return datasets.Dataset.from_dict(
        {"image": images, "label": [0, 1, 0, 1]}, features=datasets.Features(features)
    )


def as_parquet(path: Path) -> str:
    (path / "table").mkdir()
    table(path).to_parquet(path / "table" / "all.parquet", batch_size=3)
    return str(path / "table")


def as_saved_data_set(path: Path) -> str:
    table(path).save_to_disk(path / "saved")
    return str(path / "saved")


def as_array(path: Path) -> str:
    np.save(path / "stack.npy", np.zeros((4, 9, 9), np.uint8))
    return str(path / "stack.npy")


def as_paths(path: Path) -> str:
    folder(path / "images")
    (path / "list.txt").write_text("\n".join(f"images/{name}" for name in NAMES))
    return str(path / "list.txt")


KINDS = (as_folder, as_tar, as_webdataset, as_zip, as_csv, as_parquet, as_saved_data_set)


OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("split", "image_column", "label_column", "group_column"), "nosuch"),
    "classes": ("nosuch",),
    "links": "follow",
}
READ: dict[Callable[[Path], str], Set[str]] = {  # by hand, as a check of `READ_OPTIONS`
    **dict.fromkeys((as_csv, as_saved_data_set), OPTIONS.keys() - {"links"}),
    as_parquet: OPTIONS.keys(),
    **dict.fromkeys(
        (as_folder, as_tar, as_webdataset, as_zip), frozenset({"split", "classes", "links"})
    ),
    as_paths: {"split"},
    as_array: {*()},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("write", READ)
def test_each_kind_of_source_reads_or_refuses_each_option(
    tmp_path: Path, write: Callable[[Path], str], option: str
) -> None:
    location, options = write(tmp_path), SourceOptions.model_validate({option: OPTIONS[option]})
    if option == "links" and option in READ[write]:
        assert len(ingest_folder(location, options=options)) == 4
        return
    expected = (
        f"nosuch|name one with {option}"
        if option in READ[write]
        else f"{option}: has no effect with"
    )
    with pytest.raises(ValueError, match=expected):
        ingest_folder(location, options=options)


def test_every_option_is_in_the_table() -> None:
    assert {*OPTIONS, "labels"} == {*SourceOptions.model_fields}
    assert {*SOURCES} == {*READ_OPTIONS}
    without = SourceOptions(labels="none", label_column="a", classes=("a",), split="a")
    useless = [each.field for each in unread_options("list", "/a.csv", without)]
    assert useless == ["classes", "label_column"]
    for kind in ("folder", "tar", "zip", "parquet"):
        [problem] = unread_options(kind, "s3://b/a", SourceOptions(links="follow"))
        assert str(problem) == (
            "links: has no effect with images in an object store; remove it (given follow)"
        )


def listed(location: str, options: SourceOptions | None = None) -> Listing:
    source = find_source(location, options or SourceOptions()).open()
    return source.list_entries(lambda found: None)


@pytest.mark.parametrize("write", KINDS)
def test_images_and_labels_are_the_same_from_every_source(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    index = ingest_folder(write(tmp_path))
    assert (len(index), index.class_names, index.skipped) == (4, ["cat", "dog"], [])
    assert list(index.paths) == sorted(index.paths)
    assert index.labels is not None
    for position, label in enumerate(index.labels.tolist()):
        number = int(index.decode(position, 3)[0, 0, 0]) // 10
        assert number % 2 == label
    assert {int(index.decode(position, 1)[0, 0, 0]) for position in range(4)} == {0, 10, 20, 30}


@pytest.mark.parametrize("write", KINDS)
def test_source_opens_again_from_its_record(tmp_path: Path, write: Callable[[Path], str]) -> None:
    index = ingest_folder(write(tmp_path))
    record = SourceRecord.from_json(json.loads(json.dumps(index.source.to_json())))
    assert record == index.source
    with record.open().open(index.entry(2)) as file:
        assert file.read() in {content(number) for number in range(4)}


@pytest.mark.parametrize("saved", [False, True])
def test_canvases_of_other_columns_have_other_digests(tmp_path: Path, saved: bool) -> None:
    columns = {"left": [{"bytes": content(1)}], "right": [{"bytes": content(2)}], "label": [7]}
    features = datasets.Features(
        left=datasets.Image(), right=datasets.Image(), label=datasets.Value("int64")
    )
    stereo = datasets.Dataset.from_dict(columns, features=features)
    location = tmp_path / ("saved" if saved else "stereo.parquet")
    stereo.save_to_disk(location) if saved else stereo.to_parquet(location)

    def digest(**options: str) -> str:
        index = ingest_folder(location, options=SourceOptions.model_validate(options))
        return Drawer(index, 8, 3).digest()

    left = digest(image_column="left")
    assert digest(image_column="right") != left
    assert digest(image_column="left", labels="none") == left


def test_array_is_a_stack_of_images(tmp_path: Path) -> None:
    values = np.arange(3 * 5 * 4, dtype=np.uint16).reshape(3, 5, 4)
    np.save(tmp_path / "stack.npy", values)
    index = ingest_folder(tmp_path / "stack.npy")
    assert (len(index), index.pixels.dtype) == (3, "uint16")
    assert (index.decode(2, 1)[..., 0] == values[2]).all()
    np.save(tmp_path / "flat.npy", values[0])
    with pytest.raises(ValueError, match=r"flat\.npy has the shape \(5, 4\)"):
        ingest_folder(tmp_path / "flat.npy")


@pytest.mark.parametrize(
    ("shape", "is_stack"), [((20, 24, 28), True), ((40, 40, 12), False), ((9, 9, 3), False)]
)
def test_stacks_in_a_folder_are_warned_of(
    tmp_path: Path, shape: tuple[int, ...], is_stack: bool
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    np.save(tmp_path / "b.npy", np.ones(shape, np.uint8))
    np.save(tmp_path / "four.npy", np.zeros((2, 4, 4, 3), np.uint8))
    index = ingest_folder(tmp_path)
    assert any("register each file itself" in each for each in index.warnings) == is_stack
    assert "register the file itself" in index.skipped[0].reason


def test_kind_of_a_location(tmp_path: Path) -> None:
    folder(tmp_path / "images")
    (tmp_path / "images" / "labels.csv").write_text("path\n")
    assert find_source(str(tmp_path / "images")).kind == "folder"
    (tmp_path / "a.tar.gz").touch()
    with pytest.raises(ValueError, match="compressed as a whole"):
        find_source(str(tmp_path / "a.tar.gz"))
    with pytest.raises(ValueError, match="of which 4 do not exist"):
        find_source(str(tmp_path / "shards-{00..03}.tar"))
    with pytest.raises(ValueError, match="has the scheme https://"):
        find_source("https://example.org/images.tar")
    # The last has few names, each too long for a file.
    for many in ("{0..9999}-{0..9999}", "{a,b}" * 30, "{0..99999}{a,b}", "{0..9999}" + "a" * 4000):
        with pytest.raises(ValueError, match="more than 100,000 files"):
            find_source(str(tmp_path / f"{many}.tar"))


@pytest.mark.parametrize(
    "name", ["{a,b}" * 7 + "*", "*{000..100}", "[ab]{a,b}{0..50}", "{0..99,a?}" * 16]
)
def test_braces_with_a_glob_stand_for_few_patterns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 65,536 patterns, three files took 84 s."""
    monkeypatch.setattr(
        "dasl_core.data.sources.find.product", None
    )  # refused before they are expanded
    with pytest.raises(ValueError, match=r"^location: .* more than 100 patterns.* Use fewer"):
        find_source(str(tmp_path / f"{name}.tar"))


def test_most_patterns_and_more_names_are_accepted(tmp_path: Path) -> None:
    names = [f"images-{number:03}.tar" for number in range(101)]
    for name in names:
        (tmp_path / name).touch()
    found = find_source(str(tmp_path / "images-{000..099}*.tar"))
    assert [*found.files] == names[:100]
    assert len(find_source(str(tmp_path / "images-{000..100}.tar")).files) == len(names)


def test_split_and_classes_are_chosen(tmp_path: Path) -> None:
    folder(tmp_path / "images" / "train")
    folder(tmp_path / "images" / "val")
    with pytest.raises(ValueError, match="is divided into splits"):
        ingest_folder(tmp_path / "images")
    index = ingest_folder(tmp_path / "images", options=SourceOptions(split="train"))
    assert list(index.paths) == [f"train/{name}" for name in NAMES]
    assert (index.class_names, index.unused) == (["cat", "dog"], [])
    with pytest.raises(
        ValueError, match="has no split 'test'; its splits and folders are: train, val"
    ):
        ingest_folder(tmp_path / "images", options=SourceOptions(split="test"))
    train = tmp_path / "images" / "train"
    (train / "owl").mkdir()
    (train / "owl" / "4.png").write_bytes(content(4))
    chosen = ingest_folder(train, options=SourceOptions(classes=("cat", "owl")))
    assert chosen.class_names == ["cat", "owl"]
    with pytest.raises(ValueError, match="has no class 'bee'"):
        ingest_folder(train, options=SourceOptions(classes=("bee",)))
    assert ingest_folder(train, options=SourceOptions(labels="none")).labels is None


def test_splits_of_numbered_files_are_chosen(tmp_path: Path) -> None:
    for split, numbers in (("train", (0, 1)), ("val", (2, 3))):
        with tarfile.open(tmp_path / f"{split}-000.tar", "w") as archive:
            for number in numbers:
                add(archive, f"{number}.png", content(number))
    with pytest.raises(
        ValueError, match=r"splits: train, val; register .* such as with --split train"
    ):
        ingest_folder(tmp_path)
    index = ingest_folder(tmp_path, options=SourceOptions(split="val"))
    assert list(index.paths) == ["val-000/2.png", "val-000/3.png"]


def _split_list(folder: Path) -> Path:
    rows = ["path,split", "a.png,train", "gone.png,train", "b.png,val", "lost.png,val", "away.png,"]
    (folder / "list.csv").write_text("\n".join(rows))
    for number, name in enumerate("ab"):
        (folder / f"{name}.png").write_bytes(content(number))
    return folder / "list.csv"


def _split_folder(folder: Path) -> Path:
    for number, name in enumerate(("train/a.png", "val/b.png")):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(content(number))
    for link in ("train/gone.png", "val/lost.png", "away.png"):
        (folder / link).symlink_to("nowhere")
    return folder


def _split_archives(folder: Path) -> Path:
    for number, (split, lost) in enumerate((("train", "gone"), ("val", "lost"))):
        with tarfile.open(folder / f"{split}-0.tar", "w") as archive:
            add(archive, f"{number}.png", content(number))
            pipe = tarfile.TarInfo(f"{lost}.png")
            pipe.type = tarfile.FIFOTYPE
            archive.addfile(pipe)
    return folder


@pytest.mark.parametrize(
    ("make", "skipped"),
    [
        (_split_list, ["away.png", "lost.png"]),
        (_split_folder, ["val/lost.png"]),
        (_split_archives, ["val-0/lost.png"]),
    ],
)
def test_report_has_only_what_is_skipped_of_the_split(
    tmp_path: Path, make: Callable[[Path], Path], skipped: list[str]
) -> None:
    index = ingest_folder(make(tmp_path), options=SourceOptions(split="val"))
    assert [each.path for each in index.skipped] == skipped
    assert len(index) == 1


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00012.parquet", "train"),
        ("shards/birds-train-000.tar", "train"),
        ("birds_VAL.000.tar", "VAL"),
        ("birds-test.tar", "test"),
        ("validation1.tar", "validation"),
        ("contest-000.tar", None),
        ("train-birds-000.tar", None),
        ("trains-000.tar", None),
        ("retrain-000.tar", None),
        ("test/birds-000.tar", None),
        ("birds-000.tar", None),
    ],
)
def test_split_of_a_file_is_a_word_of_its_name(name: str, split: str | None) -> None:
    assert file_split(name) == split


def test_links_elsewhere_are_followed_only_where_reading_is_allowed(tmp_path: Path) -> None:
    allowed = ReadableFolders([tmp_path / "data"])
    folder(tmp_path / "secret")
    folder(tmp_path / "data" / "others")
    images = tmp_path / "data" / "images"
    images.mkdir()
    (images / "linked").symlink_to(tmp_path / "data" / "others")
    (images / "forbidden").symlink_to(tmp_path / "secret")
    (images / "0.png").symlink_to(tmp_path / "secret" / NAMES[0])
    (images / "again").symlink_to(tmp_path / "data" / "others")
    follow = SourceOptions(links="follow")
    index = ingest_folder(images, options=follow, allowed=allowed)
    assert len(index) == 4
    assert {skipped.path for skipped in index.skipped} >= {"forbidden", "0.png"}
    # The target may change after ingest.
    (tmp_path / "data" / "others" / NAMES[0]).unlink()
    (tmp_path / "data" / "others" / NAMES[0]).symlink_to(tmp_path / "secret" / NAMES[0])
    with pytest.raises(ValueError, match="outside the folders that may be read"):
        index.decode(0, 3)


def test_paths_of_a_list_must_be_allowed(tmp_path: Path) -> None:
    folder(tmp_path / "secret")
    folder(tmp_path / "data")
    rows = [
        *NAMES,
        NAMES[0],
        "absent.png",
        str(tmp_path / "secret" / NAMES[0]),
        "../secret/cat/0.png",
    ]
    (tmp_path / "data" / "list.txt").write_text("\n".join(rows))
    allowed = ReadableFolders([tmp_path / "data"])
    index = ingest_folder(tmp_path / "data" / "list.txt", allowed=allowed)
    assert list(index.paths) == sorted(NAMES)
    assert len(index.skipped) == 4
    assert [without_line(skipped.reason) for skipped in index.skipped].count(
        "it cannot be read: it resolves to a path outside the folders that may be read"
    ) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2", "has no column of paths"),
        (
            "path,label\na.png\nb.png",
            r"no usable image; 2 skipped, such as a.png \(its row has 1 field, and",
        ),
        ("\udcff", "is not a list of images in UTF-8.* save it as UTF-8"),
        ('path,label\na.png,"12"" l"\nb.png,"owl\nc.png,wren\n', "begins in line 3 has no"),
        ('path,note\na.png,"owl\nb.png,"wren"\n', "in line 2 has no end. Perhaps a quotation mark"),
        (f'path,label\na.png,"owl\n{9999 * "b.png,owl "}', "limit .* quotation mark is not"),
    ],
)
def test_damaged_list_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "list.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=problem):
        ingest_folder(tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("list.csv", b"path;label\n0.png;owl\n1.png;wren, small\n"),
        ("list.csv", 'path,label\r\n0.png,owl\r\n1.png,"wren, small"\r\n'.encode("utf-16")),
        ("list.tsv", b"path\tlabel\n0.png\towl\n1.png\twren, small\n"),
        ("list.csv", b"path\tlabel\n0.png\towl\n1.png\twren, small\n"),
        ("list.tsv", b"label;path;\nowl;0.png;\nwren, small;1.png;\n"),
        (
            "list.csv",
            b'\xef\xbb\xbf\xef\xbb\xbf Path , Label \n 0.png , owl\t\n1.png, "wren, small " \n\n',
        ),
        ("list.csv", b"\xef\xbb\xbfsep=;\r\npath;label\r\n0.png;owl\r\n1.png;wren, small\r\n"),
        ("list.csv", b"path;label\n./0.png;owl\n.\\1.png;wren, small\n"),
        ("list.csv", b"path;label\nin\\..\\0.png;owl\nin//.././1.png;wren, small\n"),
        ("list.csv", b'path,label,size\n"0.png" ,"owl",3" x\n1.png,"wren, small","two\nlines"\n'),
        ("list.csv", b"species;photo;label\nowl;0.png;a\nwren, small;1.png;b\n"),
    ],
)
def test_lists_are_read_as_spreadsheets_write_them(tmp_path: Path, name: str, data: bytes) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(content(number))
    (tmp_path / "in").mkdir()
    (tmp_path / name).write_bytes(data)
    columns = {"image_column": "Photo ", "label_column": "species"} if b"photo" in data else {}
    listing = listed(str(tmp_path / name), SourceOptions.model_validate(columns))
    assert [(posixpath.basename(each.key), each.label) for each in listing.entries] == [
        ("0.png", "owl"),
        ("1.png", "wren, small"),
    ]
    assert listing.unused_columns == (["label"] if columns else ["size"] * (b"size" in data))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_list_of_another_system_names_the_files(
    tmp_path: Path, form: Literal["NFC", "NFD"]
) -> None:
    other: Literal["NFC", "NFD"] = "NFD" if form == "NFC" else "NFC"
    (tmp_path / unicodedata.normalize(form, "Möwe.png")).write_bytes(content(0))
    name = unicodedata.normalize(other, "Möwe.png")
    (tmp_path / "list.csv").write_text(f"path\n{name}\n.\\{name}\n")
    listing = listed(str(tmp_path / "list.csv"))
    assert [entry.key for entry in listing.entries] == [unicodedata.normalize(form, "Möwe.png")]
    assert [each.reason for each in listing.skipped] == [
        "it is listed more than once (line 3 of the list)"
    ]


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        *((f"a b.png{separator}0", "a .csv with a first line path,label") for separator in " \t,;"),
        *((path, "has the ending of its file, and is relative") for path in ("a b", "C:\\a b.png")),
        *((f"{scheme}://x/a b.png", "It is an address") for scheme in ("https", "s3")),
    ],
)
def test_path_of_a_list_without_a_file_gets_the_remedy(
    tmp_path: Path, path: str, remedy: str
) -> None:
    (tmp_path / "a b.png").write_bytes(content(0))
    (tmp_path / "list.txt").write_text(f"{path}\n")
    (skipped,) = listed(str(tmp_path / "list.txt")).skipped
    assert skipped.reason.startswith("there is no such file. ")
    assert remedy in skipped.reason
    assert skipped.reason.endswith(" (line 1 of the list)")


def zip_with(path: Path, names: dict[bytes, bytes]) -> str:
    """Write a zip archive with stored names that lack the flag of UTF-8."""
    stand_ins = {f"{number}{'-' * (len(name) - 1)}": name for number, name in enumerate(names)}
    with zipfile.ZipFile(path / "a.zip", "w") as archive:
        for stand_in, name in stand_ins.items():
            archive.writestr(stand_in, names[name])
    data = (path / "a.zip").read_bytes()
    for stand_in, name in stand_ins.items():
        data = data.replace(stand_in.encode(), name)
    (path / "a.zip").write_bytes(data)
    return str(path / "a.zip")


@pytest.mark.parametrize(
    ("encoding", "classes", "guessed"),
    [
        ("utf-8", ("Möwe", "猫头鹰"), None),  # as macOS writes
        ("gbk", ("猫头鹰", "镕鹰"), "gbk"),
        ("cp437", ("Möwe", "Säger"), "cp437"),
        ("cp850", ("Bläßhuhn", "Grünfink"), "cp437"),
        ("ascii", ("owl", "wren"), None),
    ],
)
def test_names_of_other_systems_in_a_zip(
    tmp_path: Path, encoding: str, classes: tuple[str, str], guessed: str | None
) -> None:
    names = [f"{name}/{number}.png" for name in classes for number in range(2)]
    files = {name.encode(encoding): content(number) for number, name in enumerate(names)}
    index = ingest_folder(zip_with(tmp_path, files))
    assert index.class_names == sorted(classes)
    said = [warning for warning in index.warnings if "how its names are encoded" in warning]
    assert len(said) == (guessed is not None)
    assert all(f"read as {guessed}" in warning for warning in said)


def test_bad_rows_of_a_list_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(content(0))
    (tmp_path / "list.csv").write_text(
        "path,label\n0.png,owl\n,owl\n1\0.png,owl\n0.png,o\0wl\n2.png\n3.png,wren, small\n"
        "0.png,owl\n./0.png,wren\n"
    )
    listing = listed(str(tmp_path / "list.csv"))
    assert [entry.key for entry in listing.entries] == ["0.png"]
    quotes = "Put quotes around a field that contains the separator"
    assert [tuple(each) for each in listing.skipped] == [
        ("(no path)", "its row in the list has no path (line 3 of the list)"),
        (
            "./0.png",
            "it is listed more than once, and its first row has another label (line 9 of the list)",
        ),
        ("0.png", "it is listed more than once (line 8 of the list)"),
        ("0.png", "its row in the list contains a null character (line 5 of the list)"),
        ("1\\x00.png", "its row in the list contains a null character (line 4 of the list)"),
        ("2.png", "its row has 1 field, and the first line 2 (line 6 of the list)"),
        ("3.png", f"its row has 3 fields, and the first line 2. {quotes} (line 7 of the list)"),
    ]
    (tmp_path / "list.csv").write_text('sep=,\npath,label\n0.png,"o\nwl"\n\n,owl\n')
    (skipped,) = listed(str(tmp_path / "list.csv")).skipped
    assert skipped.reason.endswith(" (line 6 of the list)")
    (tmp_path / "list.csv").write_text("label,more,path\no,,0.png\n\no,\n")
    listing = listed(str(tmp_path / "list.csv"))
    assert [entry.key for entry in listing.entries] == ["0.png"]
    reason = "its row has 2 fields, and the first line 3 (line 4 of the list)"
    assert [tuple(each) for each in listing.skipped] == [("(no path)", reason)]
    (tmp_path / "list.txt").write_text("  0.png \t\n\n  # 1.png\n")
    assert [entry.key for entry in listed(str(tmp_path / "list.txt")).entries] == ["0.png"]


def test_skipped_rows_of_a_list_are_printed_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "0.png").write_bytes(content(0))
    (tmp_path / "list.txt").write_text("a.png\n0.png\nb.png\nc.png\n")
    print_warnings(ingest_folder(tmp_path / "list.txt"))
    (printed,) = [line for line in capsys.readouterr().err.splitlines() if "Skipped" in line]
    assert printed.startswith("Skipped 3 files, such as a.png: there is no such file. ")
    assert printed.endswith(" (line 1 of the list)")


def test_archive_that_is_cut_off_loses_only_its_end(tmp_path: Path) -> None:
    location = Path(as_tar(tmp_path))
    listing = listed(str(location))
    last = max(listing.entries, key=lambda entry: entry.offset)
    location.write_bytes(location.read_bytes()[: last.offset + 10])
    index = ingest_folder(location)
    assert len(index) == 3
    reasons = {skipped.path: skipped.reason for skipped in index.skipped}
    assert reasons[last.key] == "the archive is cut off in this image"


@pytest.mark.parametrize("place", [0, 2, 4])
def test_damaged_header_of_a_tar_loses_only_its_image(tmp_path: Path, place: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(5):
            add(archive, f"{number}.png", content(number))
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[place * 1024 + 100 : place * 1024 + 108] = b"#" * 8
    (tmp_path / "a.tar").write_bytes(data)
    listing = listed(str(tmp_path / "a.tar"))
    expected = [f"{number}.png" for number in range(5) if number != place]
    assert [entry.key for entry in listing.entries] == expected
    assert f"at byte {place * 1024:,}" in listing.skipped[0].reason
    assert len(listing.skipped) == 1


def test_links_in_a_tar_are_the_images_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/a.png").write_bytes(content(1))
    (tmp_path / "in/a.cls").write_bytes(b"owl")
    (tmp_path / "in/hard.png").hardlink_to(tmp_path / "in/a.png")
    (tmp_path / "in/hard.cls").hardlink_to(tmp_path / "in/a.cls")
    (tmp_path / "in/sub/soft.png").symlink_to("../hard.png")
    (tmp_path / "in/loop.png").symlink_to("loop.png")
    (tmp_path / "in/gone.png").symlink_to("nothing.png")
    os.mkfifo(tmp_path / "in/pipe.png")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "in", ".")
    source = find_source(str(tmp_path / "a.tar")).open()
    listing = source.list_entries(lambda found: None)
    assert [entry.key for entry in listing.entries] == ["a.png", "hard.png", "sub/soft.png"]
    assert {source.open(entry).read() for entry in listing.entries} == {content(1)}
    assert [entry.label for entry in listing.entries] == ["owl", "owl", None]
    assert [each.path for each in listing.skipped] == ["gone.png", "loop.png", "pipe.png"]


@pytest.mark.parametrize("around", ["", "birds/", "archive/birds/"])
@pytest.mark.parametrize("kind", ["folder", "tar", "zip", "zip of Windows", "zips", "split"])
def test_folder_around_the_class_folders_hides_no_labels(
    tmp_path: Path, kind: str, around: str
) -> None:
    names = [f"{around}{label}/{number}.png" for label in ("owl", "wren") for number in range(2)]
    split = "photos" if kind == "split" else None
    for number, name in enumerate(names):
        path = tmp_path / "images" / (split or "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    where = "images"
    if kind == "tar":
        where = "a.tar"
        with tarfile.open(tmp_path / where, "w") as archive:
            archive.add(tmp_path / "images", ".")
    elif kind.startswith("zip"):
        where = "{a,b}.zip" if kind == "zips" else "a.zip"
        for number, file in enumerate(where.replace("{a,b}", letter) for letter in "ab"):
            with zipfile.ZipFile(tmp_path / file, "w") as zipped:
                zipped.writestr(f"__MACOSX/{around}owl/._0.png", b"finder")
                for name in names if kind != "zips" else names[number::2]:
                    zipped.writestr(name, (tmp_path / "images" / name).read_bytes())
        if kind == "zip of Windows":
            written = (tmp_path / where).read_bytes()
            for part in (*names[1:], f"__MACOSX/{around}owl/._0.png"):
                written = written.replace(part.encode(), part.replace("/", "\\").encode())
            (tmp_path / where).write_bytes(written)
    index = ingest_folder(f"{tmp_path}/{where}", options=SourceOptions(split=split))
    assert index.labels is not None
    classes = [index.class_names[label] for label in index.labels]
    assert classes == [posixpath.basename(posixpath.dirname(path)) for path in index.paths]
    assert len(classes) == 4


def labels_of(path: Path, members: dict[str, str]) -> dict[str, str | None]:
    with tarfile.open(path / "a.tar", "w") as archive:
        for number, (name, label) in enumerate(members.items()):
            add(archive, name, label.encode() if label else content(number % 4))
    return {entry.key: entry.label for entry in listed(str(path / "a.tar")).entries}


def test_label_of_a_name_with_dots_is_that_of_its_own_file(tmp_path: Path) -> None:
    names = [f"Screenshot 2024-05-01 at 10.03.{second:02}" for second in range(6)]
    labels = {f"{name}.png": ("owl", "wren")[at % 2] for at, name in enumerate(names)}
    sidecars = {name.replace(".png", ".cls"): label for name, label in labels.items()}
    assert labels_of(tmp_path, {**dict.fromkeys(labels, ""), **sidecars}) == labels
    # As in WebDataset, one label file of a sample is that of all its images.
    shared = labels_of(tmp_path, {"a.left.png": "", "a.right.png": "", "a.cls": "owl", "b.png": ""})
    assert shared == {"a.left.png": "owl", "a.right.png": "owl", "b.png": None}


def test_two_labels_of_a_sample_are_refused(tmp_path: Path) -> None:
    members = {"cam0.00.png": "", "cam0.1.cls": "owl", "cam0.2.cls": "wren"}
    with pytest.raises(ValueError, match=r"cam0\.00\.png .* cam0\.1\.cls or of cam0\.2\.cls"):
        labels_of(tmp_path, members)


def test_every_file_of_a_range_must_exist(tmp_path: Path) -> None:
    as_webdataset(tmp_path)
    missing = r"names 6 files, of which 4 do not exist .*images-002\.tar, images-003\.tar"
    with pytest.raises(ValueError, match=missing):
        find_source(f"{tmp_path}/images-{{000..005}}.tar")
    with pytest.raises(ValueError, match=r"names 2 files, of which 1 do.*images-9\.tar"):
        find_source(f"{tmp_path}/images-{{000,9}}.tar")
    for pattern in ("images-{000..001}.tar", "images-*.tar", "images-{000..005}*.tar"):
        assert find_source(f"{tmp_path}/{pattern}").files == ("images-000.tar", "images-001.tar")


def test_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", bytes(1_000_000))
        archive.writestr("ok.png", content(1))
    monkeypatch.setattr("dasl_core.data.sources.archive.MAX_BYTES", 100_000)
    source = find_source(str(tmp_path / "a.zip")).open()
    listing = source.list_entries(lambda found: None)
    assert [entry.key for entry in listing.entries] == ["ok.png"]
    # Its header may lie about the size.
    bomb = Entry("bomb.png", 1200, 0, 0, 0)
    with pytest.raises(ValueError, match="cut off in this image, or the image is far too large"):
        source.open(bomb)


def test_tar_member_of_negative_size_is_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "ok.png", content(1))
    header = bytearray(tarfile.TarInfo("all.png").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 12  # -1, in base 256
    checksum = 256 + sum(header[:148]) + sum(header[156:])
    header[148:156] = f"{checksum:06o}\0 ".encode()
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:1024] + bytes(header) + bytes(2048))
    listing = listed(str(tmp_path / "a.tar"))
    assert [entry.key for entry in listing.entries] == ["ok.png"]
    assert "all.png has -1 bytes" in listing.skipped[0].reason


@pytest.mark.parametrize("write", [as_parquet, as_array])
def test_number_of_rows_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], str]
) -> None:
    location = write(tmp_path)
    monkeypatch.setattr("dasl_core.data.sources.base.MAX_ENTRIES", 3)
    with pytest.raises(ValueError, match="has 4 rows, more than 3; divide it"):
        listed(location)


def test_saved_data_set_opens_no_file_outside(tmp_path: Path) -> None:
    inside, outside = folder(tmp_path / "inside"), folder(tmp_path / "outside")
    table = datasets.Dataset.from_dict(
        {"image": [{"bytes": None, "path": str(each / NAMES[0])} for each in (inside, outside)]},
        features=datasets.Features(  # as `Image` stores it; saving an `Image` would copy the files
            {"image": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}}
        ),
    )
    table.save_to_disk(str(inside / "saved"))
    allowed = ReadableFolders([inside])
    options = SourceOptions(image_column="image")
    source = find_source(str(inside / "saved"), options, allowed).open(allowed)
    first, second = source.list_entries(lambda found: None).entries
    assert source.open(first).read() == content(0)
    with pytest.raises(ValueError, match="outside the folders"):
        source.open(second)


def test_other_columns_of_a_saved_data_set_open_nothing(tmp_path: Path) -> None:
    """A second column of images named files of other tenants and addresses, which the library opened."""
    (mine := tmp_path / "mine").mkdir()
    (secret := tmp_path / "secret.png").write_bytes(content(1))
    with socket.socket() as address:
        address.bind(("127.0.0.1", 0))
        address.listen()
        web = f"http://127.0.0.1:{address.getsockname()[1]}/"
        probes = [str(secret), str(tmp_path / "absent.png"), web]
        stored = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        rows = pyarrow.table(
            {
                "image": pyarrow.array([{"bytes": content(0), "path": None}] * len(probes), stored),
                "probe": pyarrow.array(
                    [{"bytes": None, "path": probe} for probe in probes], stored
                ),
            }
        )
        features = datasets.Features(image=datasets.Image(), probe=datasets.Image())
        about = datasets.DatasetInfo(features=features)
        # Saving a Dataset would copy the files.
        with (
            pyarrow.OSFile(str(mine / "data.arrow"), "wb") as file,
            pyarrow.ipc.new_stream(file, rows.schema) as writer,
        ):
            writer.write_table(rows)
        about.write_to_directory(mine)
        state = {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "x"}
        (mine / "state.json").write_text(json.dumps(state))
        options = SourceOptions(image_column="image")
        index = ingest_folder(str(mine), allowed=ReadableFolders([mine]), options=options)
        assert len(index) == 3, "none is skipped, whatever is at the other path"
        address.setblocking(False)
        with pytest.raises(BlockingIOError):
            address.accept()
        labels = SourceOptions(image_column="image", label_column="probe")
        with pytest.raises(ValueError, match="column 'probe', of the type Image, is no label"):
            ingest_folder(str(mine), allowed=ReadableFolders([mine]), options=labels)


@pytest.mark.parametrize("offset", [1 << 30, -8])
def test_offsets_beyond_a_saved_data_set_are_refused(tmp_path: Path, offset: int) -> None:
    """Arrow read from there, and the report showed the memory of the process as names of classes."""
    labels = [f"class {number}" for number in range(40)]
    images = [{"bytes": content(number % 20), "path": None} for number in range(40)]
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    saved = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    saved.save_to_disk(tmp_path / "saved")
    [arrow] = (tmp_path / "saved").glob("*.arrow")
    stored = arrow.read_bytes()
    ends = np.cumsum([0, *map(len, labels)]).astype("<i4").tobytes()
    assert stored.count(ends) == 1
    changed = bytearray(ends)
    changed[4 * 20 : 4 * 21] = np.array([offset], "<i4").tobytes()
    arrow.write_bytes(stored.replace(ends, bytes(changed)))
    with pytest.raises(ValueError, match=r"arrow is damaged: "):
        ingest_folder(str(tmp_path / "saved"))


def test_compressed_saved_data_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may inflate without a bound."""
    monkeypatch.setattr("dasl_core.data.sources.huggingface._MOST_JSON", 1 << 20)
    table(tmp_path).save_to_disk(tmp_path / "saved")
    [arrow] = (tmp_path / "saved").glob("*.arrow")
    rows = pyarrow.table({"image": pyarrow.array([b"\0" * (4 << 20)])})
    with pyarrow.OSFile(str(arrow), "wb") as file:
        zipped = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        with pyarrow.ipc.new_stream(file, rows.schema, options=zipped) as writer:
            writer.write_table(rows)
    with pytest.raises(ValueError, match="is compressed; save the data set without"):
        ingest_folder(str(tmp_path / "saved"))


@pytest.mark.parametrize("way", ["absolute", "above", "link", "split", "pipe", "no JSON", "no key"])
def test_hostile_saved_data_set_reads_no_file_outside(tmp_path: Path, way: str) -> None:
    secret, mine = tmp_path / "b" / "secret", tmp_path / "a" / "mine"
    table(tmp_path).save_to_disk(secret)
    [arrow] = secret.glob("*.arrow")
    mine.mkdir(parents=True)
    state = json.loads((secret / "state.json").read_text())
    named = {"absolute": str(arrow), "above": f"../../b/secret/{arrow.name}"}.get(way, arrow.name)
    state["_data_files"] = [{"filename": named}] if way != "no key" else [{}]
    if way == "split":
        (mine / "dataset_dict.json").write_text(json.dumps({"splits": ["../../b/secret"]}))
    else:
        shutil.copy(secret / "dataset_info.json", mine)
        (mine / "state.json").write_text(json.dumps(state) if way != "no JSON" else "{")
    if way == "link":
        (mine / arrow.name).symlink_to(arrow)
    elif way == "pipe":
        os.mkfifo(mine / arrow.name)
    allowed = ReadableFolders([tmp_path / "a"])
    reasons = "not beside it|leads out of|not a regular file|is not a data set saved by datasets"
    with pytest.raises(ValueError, match=reasons):
        find_source(str(mine), allowed=allowed).open(allowed).list_entries(lambda found: None)


def test_rows_without_images_are_skipped(tmp_path: Path) -> None:
    rows = {"jpg": [content(0), None, b"no image"], "label": ["a", "b", "c"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    index = ingest_folder(tmp_path / "t.parquet")
    assert len(index) == 1
    assert [skipped.reason for skipped in index.skipped] == [
        "the row has no image",
        "the content is not an image of a known format",
    ]
    with pytest.raises(ValueError, match="has no column 'picture'"):
        ingest_folder(tmp_path / "t.parquet", options=SourceOptions(image_column="picture"))


def test_groups_come_from_a_column(tmp_path: Path) -> None:
    folder(tmp_path / "in")
    rows = {
        "jpg": [content(0), content(1), content(2)],
        "patient": [7, None, 9],
        "label": ["a"] * 3,
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    datasets.Dataset.from_dict(rows).cast_column("jpg", datasets.Image()).save_to_disk(
        str(tmp_path / "saved")
    )
    lines = [f"in/{name},{group}" for name, group in zip(NAMES, ("7", "", "9"), strict=False)]
    (tmp_path / "t.csv").write_text("\n".join(["path,Patient", *lines]))
    options = SourceOptions(group_column="patient")
    for name in ("t.parquet", "saved", "t.csv"):
        index = ingest_folder(tmp_path / name, options=options)
        assert list(index.groups or ()) == ["7", "", "9"], name
        assert index.facts().group_column == "patient"
        index.save(tmp_path / "index")
        assert DatasetIndex.load(tmp_path / "index").groups == index.groups
        with pytest.raises(ValueError, match="has no column 'plate'"):
            ingest_folder(tmp_path / name, options=SourceOptions(group_column="plate"))
    (tmp_path / "t.csv").write_text(f"path,patient\nin/{NAMES[0]},{'x' * 1001}\n")
    with pytest.raises(ValueError, match="a value of 1001 characters"):
        ingest_folder(tmp_path / "t.csv", options=options)


def test_parquet_with_paths_alone_says_so(tmp_path: Path) -> None:
    paths = [{"bytes": None, "path": "a.png"}]
    parquet.write_table(pyarrow.table({"image": paths}), tmp_path / "null.parquet")
    parquet.write_table(pyarrow.table({"file_name": ["a.png"]}), tmp_path / "text.parquet")
    images = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    typed = pyarrow.table({"image": pyarrow.array(paths, images)})
    parquet.write_table(typed, tmp_path / "typed.parquet")
    for name in ("null", "text", "typed"):
        with pytest.raises(ValueError, match=r"has only (text instead of|the path)"):
            ingest_folder(tmp_path / f"{name}.parquet")


def test_uris_must_be_allowed() -> None:
    allowed = ReadableFolders(uris=["s3://data/shared"], excluded_uris=["s3://data/shared/private"])
    assert allowed.allow_uri("s3://data/shared/images")
    assert not allowed.allow_uri("s3://data/shared")  # contains what is private
    for uri in ("s3://data/shared2", "s3://data", "s3://data/shared/private/a", "gs://data/shared"):
        assert not allowed.allow_uri(uri)
    assert not allowed.allow_uri("s3://data/shared/../secret")
    with pytest.raises(ValueError, match="outside the folders that may be read"):
        find_source("s3://other/images.tar", SourceOptions(), allowed)


def test_list_and_pattern_read_nothing_that_is_excluded(tmp_path: Path) -> None:
    """A folder that may be read can contain another tenant's."""
    private = tmp_path / "private"
    folder(private)
    with tarfile.open(private / "a.tar", "w") as archive:
        add(archive, "0.png", content(0))
    allowed = ReadableFolders([tmp_path], [private])
    (tmp_path / "list.txt").write_text(f"private/{NAMES[0]}\n{private / NAMES[1]}\n0.png\n")
    (tmp_path / "0.png").write_bytes(content(0))
    index = ingest_folder(tmp_path / "list.txt", allowed=allowed)
    assert list(index.paths) == ["0.png"]
    assert len(index.skipped) == 2
    for location in (private / "a.tar", private / "*.tar", private):
        with pytest.raises(ValueError, match="outside the folders that may be read"):
            ingest_folder(location, allowed=allowed)
    # A pattern stands for files of its own folder, not for those of the folders inside.
    with pytest.raises(ValueError, match="matches 0 files"):
        ingest_folder(tmp_path / "*.tar", allowed=allowed)
    record = SourceRecord("tar", str(private), str(tmp_path), ("private/a.tar",))
    with pytest.raises(ValueError, match="outside the folders that may be read"):
        record.open(allowed)


def test_folder_may_be_named_like_a_pattern(tmp_path: Path) -> None:
    assert len(ingest_folder(folder(tmp_path / "a*b{1..2}"))) == 4


@pytest.mark.parametrize("uri", ["s3://", "s3:///folder", "hf://", "s3://*.tar"])
def test_uri_must_name_a_bucket(uri: str) -> None:
    with pytest.raises(ValueError, match="names no bucket or owner"):
        find_source(uri)
    with pytest.raises(ValueError, match="contains ::"):
        find_source("s3://bucket/images::file")


def test_hub_name_is_never_a_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library `datasets` reads a folder of that name below the current one."""
    folder(tmp_path / "owner" / "secret")
    monkeypatch.chdir(tmp_path)
    for uri in ("hf://owner/secret", "hf://owner", "hf://owner/secret/cat"):
        with pytest.raises(ValueError, match="names no data set of the hub"):
            ingest_folder(uri)


def test_many_parquet_files_are_not_all_open(tmp_path: Path) -> None:
    for number in range(60):
        rows = pyarrow.table({"jpg": [content(number % 4)]})
        parquet.write_table(rows, tmp_path / f"part-{number:05}.parquet")
    before = len(os.listdir("/proc/self/fd"))
    index = ingest_folder(tmp_path)
    assert len(index) == 60
    assert len(os.listdir("/proc/self/fd")) - before < 40
    for position in range(59, -1, -7):
        assert index.decode(position, 3)[0, 0, 0] == 10 * (position % 4)


@pytest.mark.parametrize("write", [as_tar, as_zip, as_parquet, as_csv, as_array])
def test_damaged_sources_are_refused_or_read_in_part(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    location = Path(write(tmp_path))
    file = location if location.is_file() else next(location.iterdir())
    whole, random = file.read_bytes(), np.random.default_rng(0)
    problems: list[str] = []
    for number in range(150):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)] if number % 3 else whole)
        for place in random.integers(0, len(damaged), 8):
            damaged[place] = random.integers(0, 256)
        file.write_bytes(damaged)
        try:
            index = ingest_folder(file, workers=1)
        except ValueError as error:
            problems.append(str(error))
        else:
            assert len(index) > 0
    assert problems
    assert all(problem and "\n" not in problem for problem in problems)
