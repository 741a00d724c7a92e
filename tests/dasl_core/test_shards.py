"""Canvases in shards: the values of raw ones, or of JPEG, wherever they are read and whatever happens to the files."""

import errno
import io
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from dasl_core.data import shard_file, shards
from dasl_core.data.cache import MAX_BYTES_VARIABLE
from dasl_core.data.coding import Form, Jpeg, Lossless, build_coding
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.opening import compute_checksum
from dasl_core.data.shard_file import ShardWriter
from dasl_core.data.shard_store import VARIABLE, shared_store
from dasl_core.spec import DatasetFacts, JobSpec
from dasl_core.spec.problems import SpecError
from dasl_core.spec.resolve import resolve
from tests.support.gloo_pool import GlooPool
from tests.support.small_shards import (
    IMAGES,
    PER_SHARD,
    SHARDS,
    STORE_CHECKS,
    content_of,
    drawn_all,
    make_small,
    opened,
    read_all,
    record_drawn,
)
from tests.support.training_world import image_folder, ingest, recorded, resolved

DEADLINE = 60


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pictures a shard, no room for raw ones, reports after each image, and no waits."""
    make_small(monkeypatch)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that are decoded from their files."""
    return record_drawn(monkeypatch)


# --- values


@settings(max_examples=40)
@given(st.data())
def test_lossless_coding_returns_the_same_bits(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["uint8", "uint16", "int16", "float32"])))
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)))
    pixels = data.draw(arrays.arrays(dtype, shape))
    coding = Lossless(dtype)
    found = coding.decode(coding.encode(pixels), shape)
    assert found.dtype == dtype
    assert found.tobytes() == pixels.tobytes()  # also NaN and -0.0


def write_image(folder: Path, kind: str, number: int) -> None:
    random = np.random.default_rng(number)
    if kind == "uint8":
        pixels = random.integers(0, 256, (20 + number, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    elif kind == "uint16":
        deep = random.integers(0, 2**16, (20 + number, 24), np.uint16)
        Image.fromarray(deep).save(folder / f"{number}.png")
    else:
        bands = random.normal(size=(20 + number, 24, 5)).astype(np.float32)
        file = folder / f"{number}.tif"
        tifffile.imwrite(file, bands, planarconfig="contig", photometric="minisblack")


@pytest.mark.parametrize(
    ("kind", "channels", "form"),
    [
        ("uint8", 3, "exact"),
        ("uint8", 1, "exact"),
        ("uint16", 1, "exact"),
        ("float32", 5, "exact"),
        ("uint16", 1, "jpeg"),  # which JPEG cannot hold
    ],
)
def test_shards_have_the_values_of_raw_canvases(
    tmp_path: Path, kind: str, channels: int, form: Form, drawn: list[int]
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(6):
        write_image(folder, kind, number)
    index = ingest_folder(folder)
    expected = drawn_all(index, channels)
    first = read_all(index, tmp_path / "cache", form, channels)
    drawn.clear()
    again = read_all(index, tmp_path / "cache", form, channels)
    assert drawn == []
    assert first.dtype == expected.dtype
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_close_and_the_same_wherever_it_is_read(tmp_path: Path, channels: int) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    ramp = np.linspace(0, 255, 40 * 30).reshape(30, 40)
    for number in range(5):
        pixels = np.stack([np.roll(ramp, number * shift, 0) for shift in (0, 1, 2)], axis=2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    index = ingest_folder(folder)
    exact = drawn_all(index, channels)
    cached = read_all(index, tmp_path / "cache", "jpeg", channels)
    error = np.mean((cached.astype(float) - exact) ** 2)
    assert 0 < error < 255**2 / 10 ** (38 / 10)  # a PSNR of more than 38 dB
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MAX_BYTES_VARIABLE, "0")
        with opened(index, tmp_path / "none", "jpeg", channels) as canvases:
            assert canvases.not_cached is not None
            np.testing.assert_array_equal(canvases.read(range(5))[0].numpy(), cached)


def test_disk_that_fills_up_while_shards_are_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = ingest(image_folder(tmp_path / "images"))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "finish", full)
    with opened(index, tmp_path / "cache", "jpeg", 3) as canvases:
        named = f"{tmp_path / 'cache'} cannot be written: No space left on device"
        assert canvases.not_cached == named


def test_jpeg_is_for_what_it_can_hold() -> None:
    assert isinstance(build_coding("jpeg", np.dtype("uint8"), 3), Jpeg)
    assert isinstance(build_coding("jpeg", np.dtype("uint8"), 5), Lossless)
    assert isinstance(build_coding("exact", np.dtype("uint8"), 3), Lossless)


# --- building


def test_shards_are_whole_and_listed(
    pictures: DatasetIndex, tmp_path: Path, drawn: list[int]
) -> None:
    seen: list[int] = []
    with opened(pictures, tmp_path, on_read=seen.append) as canvases:
        assert canvases.stored is not None
        assert canvases.stored[0] == "lossless"
        assert canvases.stored[1] == sum(map(len, content_of(tmp_path).values()))
    assert sorted(drawn) == list(range(IMAGES))
    assert seen == sorted(seen)
    assert seen[-1] == IMAGES
    suffixes = sorted({file.suffix for file in tmp_path.glob("canvases-*")})
    assert suffixes == [".lock", ".manifest", ".sha256", ".shard", ".used"]
    assert len(content_of(tmp_path)) == SHARDS
    for file in tmp_path.glob("*.shard"):
        shard_file.check_shard(file)


def build_until_killed(index: DatasetIndex, cache: Path, calls: int, shared: str) -> None:
    """Kill this process at one of its calls for the disk."""
    left, lock = calls, threading.Lock()

    def step(original: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **keywords: object) -> object:
            nonlocal left
            with lock:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **keywords)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        if shared:
            patch.setenv(VARIABLE, shared)
        patch.setattr(os, "fsync", step(os.fsync))
        patch.setattr(Path, "replace", step(Path.replace))
        patch.setattr(Path, "unlink", step(Path.unlink))
        patch.setattr(shard_file.ShardWriter, "append", step(shard_file.ShardWriter.append))
        with opened(index, cache):
            pass


@pytest.mark.parametrize("shared", [False, True])
def test_killed_build_loses_no_image_and_has_none_twice(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path, drawn: list[int], shared: bool
) -> None:
    cache, store = tmp_path / "cache", str(tmp_path / "store") if shared else ""
    read_all(pictures, tmp_path / "undisturbed")
    drawn.clear()
    chance = random.Random(3)
    whole: set[str] = set()
    for _ in range(3):  # each continues where the last one was killed
        with pytest.raises(AssertionError, match="its process died"):
            pool.call(1, build_until_killed, pictures, cache, chance.randrange(9, 18), store)
        kept = set(content_of(cache))
        assert whole <= kept
        whole = kept
    with pytest.MonkeyPatch.context() as patch:
        if shared:
            patch.setenv(VARIABLE, store)
        np.testing.assert_array_equal(read_all(pictures, cache), drawn_all(pictures))
    built = content_of(cache)
    assert built == content_of(tmp_path / "undisturbed")
    assert len(built) == SHARDS
    assert not list(cache.glob("*.partial"))
    assert whole
    assert len(drawn) == IMAGES + sum(
        IMAGES - PER_SHARD * (SHARDS - 1) if name.endswith("-00006.shard") else PER_SHARD
        for name in set(built) - whole
    )
    if shared:
        (folder,) = (tmp_path / "store").iterdir()
        assert {name[-11:]: data for name, data in built.items()} == content_of(folder)


def test_bytes_in_flight_are_bounded(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be as slow as it likes: the writer waits for it."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 1 << 20)
    monkeypatch.setattr(shard_file, "FLUSH_BYTES", 3000)
    written, largest, fsync = 0, 0, os.fsync
    write = shard_file.ShardWriter._write

    def counted(writer: shard_file.ShardWriter, content: bytes) -> None:
        nonlocal written, largest
        written += len(content)
        largest = max(largest, written)
        write(writer, content)

    def flushed(file: int) -> None:
        nonlocal written
        written = 0
        fsync(file)

    monkeypatch.setattr(shard_file.ShardWriter, "_write", counted)
    monkeypatch.setattr(os, "fsync", flushed)
    read_all(pictures, tmp_path)
    assert 3000 < largest < 3000 + 20 * 24 * 3 * 2


def test_waiting_process_sees_progress_and_builds_nothing(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, release = threading.Event(), threading.Event()
    draw, numbers, seen = Drawer.draw_valid, [], []

    def gated(drawer: Drawer, number: int) -> np.ndarray | str:
        numbers.append(number)
        if number >= 10:
            reached.set()
            assert release.wait(DEADLINE)
        return draw(drawer, number)

    def watch(images: int) -> None:
        seen.append(images)
        if images >= 8:
            release.set()

    monkeypatch.setattr(Drawer, "draw_valid", gated)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read_all, pictures, tmp_path)
        assert reached.wait(DEADLINE)

        def wait() -> None:
            with opened(pictures, tmp_path, on_read=watch):
                pass

        second = threads.submit(wait)
        first.result(DEADLINE)
        second.result(DEADLINE)
    assert sorted(numbers) == list(range(IMAGES))
    assert any(8 <= images < IMAGES for images in seen)


# --- images that cannot be read


def test_broken_images_are_found_as_with_raw_canvases(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", per_class=10))
    whole = drawn_all(index)
    (index.root / index.paths[5]).write_bytes(b"no image")
    # Damage is not told from a change.
    index.checksums[5] = compute_checksum(io.BytesIO(b"no image"), inflates=False)
    missing = (index.root / index.paths[7]).rename(tmp_path / "elsewhere")
    with opened(index, tmp_path / "cache") as canvases:
        assert canvases.unreadable == {
            5: "the content is not an image of a known format",
            7: "the file does not exist",
        }
        pixels = canvases.read(range(30))[0].numpy()
    whole[5] = 0
    assert not pixels[7].any()
    # The next job reads again what was missing, and never what is broken.
    missing.rename(index.root / index.paths[7])
    with opened(index, tmp_path / "cache") as canvases:
        assert list(canvases.unreadable) == [5]
        np.testing.assert_array_equal(canvases.read(range(30))[0].numpy(), whole)


def test_too_many_missing_images_build_nothing(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", per_class=10))
    index.root.rename(tmp_path / "unmounted")
    with opened(index, tmp_path / "cache") as canvases:
        assert len(canvases.unreadable) == 30
        assert canvases.stored is None
    assert content_of(tmp_path / "cache") == {}


# --- damage


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_flipped_byte_is_noticed_and_the_shard_is_built_again(
    pictures: DatasetIndex, tmp_path: Path, drawn: list[int]
) -> None:
    expected = read_all(pictures, tmp_path)
    whole = content_of(tmp_path)
    name = sorted(whole)[2]
    flip(tmp_path / name, 1000)
    drawn.clear()
    np.testing.assert_array_equal(read_all(pictures, tmp_path), expected)
    assert set(drawn) <= set(range(8, 12))
    assert drawn
    assert name not in content_of(tmp_path)
    drawn.clear()
    np.testing.assert_array_equal(read_all(pictures, tmp_path), expected)
    assert drawn == [8, 9, 10, 11]
    assert content_of(tmp_path) == whole


@pytest.mark.parametrize("manifest", [True, False])
def test_cut_off_shard_is_built_again(
    pictures: DatasetIndex, tmp_path: Path, drawn: list[int], manifest: bool
) -> None:
    expected = read_all(pictures, tmp_path)
    whole = content_of(tmp_path)
    file = tmp_path / sorted(whole)[1]
    os.truncate(file, file.stat().st_size - 1)
    if not manifest:
        next(tmp_path.glob("*.manifest")).unlink()
    drawn.clear()
    np.testing.assert_array_equal(read_all(pictures, tmp_path), expected)
    assert drawn == [4, 5, 6, 7]
    assert content_of(tmp_path) == whole


def test_shard_of_other_content_is_refused(pictures: DatasetIndex, tmp_path: Path) -> None:
    read_all(pictures, tmp_path)
    file = sorted(tmp_path.glob("*.shard"))[0]
    size = file.stat().st_size
    shard_file.check_shard(file)
    for at in (size - 48, size - 50 - 16, size - 49, 0):  # footer, table, reasons and records
        flip(file, at)
        with pytest.raises(ValueError, match=r"checksum|cut off"):
            shard_file.check_shard(file)
        flip(file, at)
    with shard_file.opened(file) as read, pytest.raises(ValueError, match="cut off"):
        shard_file.read_shard(read, size, PER_SHARD + 1)


# --- room


def test_what_fits_is_cached_and_the_rest_is_decoded(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[int]
) -> None:
    expected = read_all(pictures, tmp_path / "whole")
    sizes = sorted(map(len, content_of(tmp_path / "whole").values()))
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(3 * sizes[-1] + 100))
    cache = tmp_path / "other" / "cache"
    with opened(pictures, cache) as canvases:
        assert canvases.not_cached is not None
        assert "there is room for 12 of 27 images: they take" in canvases.not_cached
        drawn.clear()
        np.testing.assert_array_equal(canvases.read(range(IMAGES))[0].numpy(), expected)
    assert sorted(drawn) == list(range(12, IMAGES))
    assert not list(cache.glob("*.manifest"))


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_shards_take_a_share_of_the_free_disk_together(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all(pictures, tmp_path / "whole")
    size = max(map(len, content_of(tmp_path / "whole").values()))
    cache = tmp_path / "cache"

    def usage(path: object) -> Usage:
        return Usage(0, 0, 8 * size - sum(map(len, content_of(cache).values())))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with opened(pictures, cache) as canvases:
        assert canvases.not_cached is not None
    assert len(content_of(cache)) == 4  # of eight that the disk has room for


# --- shared by nodes


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes share a folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("check", STORE_CHECKS)
def test_nodes_share_a_folder(
    check: Callable[[DatasetIndex, Path, list[int]], None],
    pictures: DatasetIndex,
    tmp_path: Path,
    drawn: list[int],
) -> None:
    check(pictures, tmp_path, drawn)


@pytest.mark.usefixtures("store")
def test_nodes_build_at_once_and_agree(pictures: DatasetIndex, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        nodes = [
            threads.submit(read_all, pictures, tmp_path / name / "cache") for name in ("a", "b")
        ]
        first, second = (node.result(DEADLINE) for node in nodes)
    np.testing.assert_array_equal(first, drawn_all(pictures))
    np.testing.assert_array_equal(first, second)
    assert content_of(tmp_path / "a" / "cache") == content_of(tmp_path / "b" / "cache")


def test_store_that_is_away_is_left(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    np.testing.assert_array_equal(read_all(pictures, tmp_path / "cache"), drawn_all(pictures))
    assert len(content_of(tmp_path / "cache")) == SHARDS


def test_shards_that_were_built_alone_are_shared_later(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[int]
) -> None:
    read_all(pictures, tmp_path / "first")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shared"))
    read_all(pictures, tmp_path / "first")
    drawn.clear()
    read_all(pictures, tmp_path / "second")
    assert drawn == []


def test_run_reports_its_shards(
    pictures: DatasetIndex, tmp_path: Path, without_plots: None
) -> None:
    spec = resolved(pictures, train={"image_cache": "jpeg", "epochs": 1})
    recorder = recorded(spec, pictures, tmp_path / "cache", tmp_path / "out")
    ((kind, _, data),) = recorder.events
    size = sum(map(len, content_of(tmp_path / "cache").values()))
    assert kind == "images_cached"
    assert data == {"dataset": "pictures", "form": "jpeg", "bytes": size}


@pytest.mark.parametrize("uri", ["shards", "./shards"])
def test_store_must_be_an_absolute_path(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, uri)
    with pytest.raises(ValueError, match="DASL_SHARDS_URI must be an absolute path"):
        shared_store("name")


# --- the setting


IMAGENET = DatasetFacts(num_images=1_281_167, num_classes=1000, median_size=375)


@pytest.mark.parametrize(
    ("facts", "backbone", "expected"),
    [
        (IMAGENET, {"image_size": 224}, "jpeg"),
        (IMAGENET, {"image_size": 64}, "jpeg"),
        (IMAGENET.model_copy(update={"num_images": 18_000}), {"image_size": 224}, "jpeg"),
        (IMAGENET.model_copy(update={"num_images": 17_000}), {"image_size": 224}, "exact"),
        (IMAGENET.model_copy(update={"median_size": 24}), {"image_size": 224}, "exact"),
        (IMAGENET.model_copy(update={"dtype": "uint16"}), {"image_size": 224}, "exact"),
        (IMAGENET, {"image_size": 224, "in_channels": 4}, "exact"),
    ],
)
def test_jpeg_is_chosen_where_raw_values_would_be_too_large(
    facts: DatasetFacts, backbone: dict[str, Any], expected: str
) -> None:
    spec = {"name": "a", "dataset": "imagenet", "method": {"name": "simclr"}, "backbone": backbone}
    assert resolve(JobSpec.model_validate(spec), facts).train.image_cache == expected


def test_jpeg_is_refused_for_what_it_cannot_hold() -> None:
    spec = {
        "name": "a",
        "dataset": "deep",
        "method": {"name": "simclr"},
        "train": {"image_cache": "jpeg"},
    }
    facts = IMAGENET.model_copy(update={"dtype": "uint16", "num_images": 1000})
    with pytest.raises(SpecError, match=r"train\.image_cache: needs 8-bit images"):
        resolve(JobSpec.model_validate(spec), facts)
