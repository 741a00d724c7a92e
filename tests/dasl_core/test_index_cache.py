"""The index of an image folder in the cache of a run without a service."""

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from dasl_core.data import sample
from dasl_core.data.decode import decode
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder, list_source
from dasl_core.data.sources import Entry, find_source
from dasl_core.data.sources.folder import FolderSource
from dasl_core.distributed import rank
from dasl_core.spec.source import SourceOptions
from dasl_core.standalone.images import INDEX, ImageLocation, open_images, open_index
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import image_folder

IMAGES = 27


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "pictures").resolve()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Decoder:
    """Counts the images that ingest decodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        monkeypatch.setattr(sample, "decode", self.decode)

    def decode(self, file: BinaryIO, name: str, *arguments: Any) -> Any:
        self.paths.append(name)
        return decode(file, name, *arguments)

    def count(self) -> int:
        """Return the number of images since the last count."""
        count = len(self.paths)
        self.paths.clear()
        return count


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    return Decoder(monkeypatch)


def opened(root: Path, cache: Path) -> DatasetIndex:
    """Open the index as a start does."""
    record = find_source(str(root))
    source, listing = list_source(record)
    return open_index(record, source, listing, cache / listing.digest())


def assert_equal(index: DatasetIndex, expected: DatasetIndex) -> None:
    assert index.paths == expected.paths
    assert (index.labels is None) is (expected.labels is None)
    if index.labels is not None and expected.labels is not None:
        assert index.labels.tolist() == expected.labels.tolist()
    assert index.class_names == expected.class_names
    assert index.sizes.tolist() == expected.sizes.tolist()
    assert index.skipped == expected.skipped
    assert (index.root, index.unused) == (expected.root, expected.unused)


def test_second_start_decodes_nothing(root: Path, cache: Path, decoder: Decoder) -> None:
    (root / "class-0" / "broken.png").write_bytes(b"no image")
    (root / "notes.txt").write_text("not an image")
    first = opened(root, cache)
    assert decoder.count() == IMAGES
    assert_equal(opened(root, cache), first)
    assert decoder.count() == 0
    assert_equal(first, ingest_folder(root))


def test_second_run_decodes_nothing_to_ingest(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: Decoder
) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    first, name = open_images(ImageLocation(str(root), None, "--data"))
    assert decoder.count() == IMAGES
    again, same_name = open_images(ImageLocation(str(root), None, "--data"))
    assert decoder.count() == 0
    assert_equal(again, first)
    assert same_name == name
    source = SourceOptions(labels="none")
    unlabeled, _ = open_images(ImageLocation(str(root), None, "--data", source))
    assert unlabeled.labels is None
    assert first.labels is not None
    decoder.count()
    # Another version of the code, whose ingest finds something else.
    monkeypatch.setattr("dasl_core.standalone.images.FORMAT", 0)
    open_images(ImageLocation(str(root), None, "--data"))
    assert decoder.count() == IMAGES


def change(root: Path) -> None:
    file = root / "class-1" / "00.png"
    file.write_bytes((root / "class-2" / "00.png").read_bytes())


def touch(root: Path) -> None:
    os.utime(root / "class-1" / "00.png", ns=(1, 1))


def add(root: Path) -> None:
    (root / "class-1" / "new.png").write_bytes((root / "class-1" / "00.png").read_bytes())


def remove(root: Path) -> None:
    (root / "class-1" / "00.png").unlink()


def rename(root: Path) -> None:
    (root / "class-1" / "00.png").rename(root / "class-1" / "a.png")


def forbid(root: Path) -> None:
    (root / "class-1" / "00.png").chmod(0)


@pytest.mark.parametrize("edit", [change, touch, add, remove, rename, forbid])
def test_changed_folder_is_ingested_again(
    root: Path, cache: Path, decoder: Decoder, edit: Any
) -> None:
    opened(root, cache)
    decoder.count()
    edit(root)
    assert_equal(opened(root, cache), ingest_folder(root))
    assert decoder.count() > 0


def test_copy_of_a_folder_has_an_index_of_its_own(root: Path, cache: Path, tmp_path: Path) -> None:
    opened(root, cache)
    copy = (tmp_path / "copy").resolve()
    root.rename(copy)
    assert opened(copy, cache).root == copy


@pytest.mark.parametrize("content", [b"", b"no gzip", None])
def test_damaged_index_is_rebuilt(
    root: Path,
    cache: Path,
    decoder: Decoder,
    content: bytes | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = opened(root, cache)
    (file,) = cache.glob(f"*/{INDEX}")
    file.write_bytes(file.read_bytes()[:100] if content is None else content)
    decoder.count()
    assert_equal(opened(root, cache), first)
    assert decoder.count() == IMAGES
    assert "reading all images again" in capsys.readouterr().err
    opened(root, cache)
    assert decoder.count() == 0


def test_index_of_another_folder_is_not_used(
    root: Path, cache: Path, decoder: Decoder, tmp_path: Path
) -> None:
    opened(root, cache)
    (file,) = cache.glob(f"*/{INDEX}")
    other = image_folder(tmp_path / "other", classes=2)
    ingest_folder(other).save(file)
    assert opened(root, cache).root == root


@pytest.mark.parametrize("reason", [PermissionError(errno.EACCES, "no"), OSError(errno.EIO, "no")])
def test_transient_failure_is_not_kept(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, reason: OSError
) -> None:
    def fails(source: FolderSource, entry: Entry) -> BinaryIO:
        if entry.key.endswith("00.png"):
            raise reason
        return opens(source, entry)

    opens = FolderSource.open
    with monkeypatch.context() as patch:
        patch.setattr(FolderSource, "open", fails)
        assert len(opened(root, cache)) == IMAGES - 3
    assert len(opened(root, cache)) == IMAGES


def test_cache_that_cannot_be_written_is_no_error(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file in the place of the folder")
    assert len(opened(root, tmp_path / "cache")) == IMAGES
    assert "cannot be written, so the next start reads all images again" in capsys.readouterr().err


def open_and_die(root: Path, cache: Path, survived: int) -> None:
    """Open the folder in a process that is killed at an operation of the write; with 9 it survives."""
    operations = ["mkdir", "open", "fsync", "replace"]

    def killed(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if survived < len(operations):
        from dasl_core import atomic

        name = operations[survived]
        if name == "fsync":
            os.fsync = killed
        elif name == "open":
            vars(atomic)["open"] = killed
        else:
            setattr(Path, name, killed)
    opened(root, cache)


@pytest.mark.parametrize("survived", range(4))
def test_kill_at_any_point_leaves_no_damaged_index(
    root: Path, cache: Path, survived: int, capsys: pytest.CaptureFixture[str]
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=open_and_die, args=(root, cache, survived)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert_equal(opened(root, cache), ingest_folder(root))
    assert "read again" not in capsys.readouterr().err


def test_two_processes_at_once(root: Path, cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=open_and_die, args=(root, cache, 9)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (file,) = cache.glob("*/*")
    assert_equal(DatasetIndex.load(file), ingest_folder(root))


def open_on_ranks(root: str, cache: str) -> tuple[int, int, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASL_CACHE_DIR", cache)
        decoder = Decoder(patch)
        index, name = open_images(ImageLocation(root, None, "--data"))
        assert (name / INDEX).is_file()
        return rank(), decoder.count(), list(index.paths)


def test_only_rank_0_ingests(pool: GlooPool, root: Path, cache: Path) -> None:
    paths = list(ingest_folder(root).paths)
    assert pool.call(2, open_on_ranks, str(root), str(cache)) == [(0, IMAGES, paths), (1, 0, paths)]
    assert pool.call(2, open_on_ranks, str(root), str(cache)) == [(0, 0, paths), (1, 0, paths)]


def refused_on_ranks(root: str) -> str:
    try:
        open_images(ImageLocation(root, None, "--data"))
    except ValueError as error:
        return str(error)
    return "accepted"


def test_ranks_refuse_a_folder_together(pool: GlooPool, tmp_path: Path) -> None:
    first, second = pool.call(2, refused_on_ranks, str(tmp_path / "missing"))
    assert first == second
    assert "does not exist" in first
