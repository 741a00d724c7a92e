"""Batches: each image once per epoch, the same on any number of ranks; and failures of the cache."""

import logging
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from dasl_core.data import cache as cache_module
from dasl_core.data import canvases as canvases_module
from dasl_core.data.canvas_file import CanvasFile
from dasl_core.data.canvases import Canvases
from dasl_core.data.decode import decode_image
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch, EpochLoader
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import image_folder, ingest

THREADS = 2


@contextmanager
def opened(
    index: DatasetIndex, cache: Path | None, size: int = 16, channels: int = 3
) -> Iterator[Canvases]:
    canvases = Canvases(index, size, channels, cache=cache, threads=THREADS)
    try:
        yield canvases
    finally:
        canvases.close()


def everything(canvases: Canvases) -> np.ndarray:
    return canvases.read(range(len(canvases.index)))[0].numpy()


def cache_files(cache: Path) -> list[str]:
    return sorted(file.suffix for file in cache.glob("canvases-*"))


# --- order


def epoch_of(
    index: DatasetIndex,
    cache: Path,
    batch_size: int,
    epoch: int,
    first_step: int = 0,
    seed: int = 1,
) -> list[Batch]:
    with opened(index, cache) as canvases:
        batches = EpochLoader(canvases, np.arange(len(index)), batch_size, seed)
        return list(batches.epoch(epoch, first_step))


def samples_of(*arguments: object) -> list[list[int]]:
    return [batch.indices.tolist() for batch in epoch_of(*arguments)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 27), (4, 6), (9, 3), (20, 1), (27, 1)])
def test_epoch_has_each_image_at_most_once(
    pictures: DatasetIndex, cache: Path, batch_size: int, steps: int
) -> None:
    batches = epoch_of(pictures, cache, batch_size, 0)
    assert [batch.step for batch in batches] == list(range(steps))
    samples = [sample for batch in batches for sample in batch.indices.tolist()]
    assert len(samples) == len(set(samples)) == steps * batch_size


def test_batch_contains_images_of_its_indices(pictures: DatasetIndex, cache: Path) -> None:
    for batch in epoch_of(pictures, cache, 8, 2):
        for canvas, extent, sample in zip(
            batch.canvases.numpy(), batch.valid_hw.tolist(), batch.indices.tolist(), strict=True
        ):
            image = decode_image(pictures.root / pictures.paths[sample])
            assert extent == list(image.shape[:2])
            np.testing.assert_array_equal(
                canvas[:, : extent[0], : extent[1]], image.transpose(2, 0, 1)
            )


def test_only_given_indices_are_drawn(pictures: DatasetIndex, cache: Path) -> None:
    chosen = np.array([2, 3, 5, 7, 11, 13])
    with opened(pictures, cache) as canvases:
        batches = EpochLoader(canvases, chosen, 3, 0)
        assert sorted(s for b in batches.epoch(0) for s in b.indices.tolist()) == chosen.tolist()


def test_order_depends_only_on_seed_and_epoch(pictures: DatasetIndex, cache: Path) -> None:
    first = samples_of(pictures, cache, 9, 0)
    assert samples_of(pictures, cache, 9, 0) == first
    assert samples_of(pictures, cache, 9, 1) != first
    assert samples_of(pictures, cache, 9, 0, 0, 2) != first
    # Another batch size cuts the same order at other positions.
    assert samples_of(pictures, cache, 27, 0) == [list(chain(*first))]


def test_epoch_resumes_with_same_batches(pictures: DatasetIndex, cache: Path) -> None:
    undisturbed = epoch_of(pictures, cache, 4, 3)
    for first_step in range(7):
        resumed = epoch_of(pictures, cache, 4, 3, first_step)
        assert [b.step for b in resumed] == [b.step for b in undisturbed[first_step:]]
        for one, other in zip(resumed, undisturbed[first_step:], strict=True):
            assert one.indices.tolist() == other.indices.tolist()
            assert one.canvases.equal(other.canvases)


def samples_and_canvases(index: DatasetIndex, cache: Path) -> list[tuple[list[int], np.ndarray]]:
    batches = epoch_of(index, cache, 8, 1)
    return [(batch.indices.tolist(), batch.canvases.numpy()) for batch in batches]


@pytest.mark.parametrize("world", [2, 4])
def test_shares_of_ranks_form_global_batch(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, world: int
) -> None:
    shares = pool.call(world, samples_and_canvases, pictures, cache)
    for step, (samples, canvases) in enumerate(samples_and_canvases(pictures, cache)):
        # Every rank knows the indices of the global batch, and reads its own share.
        assert all(share[step][0] == samples for share in shares)
        np.testing.assert_array_equal(np.concatenate([s[step][1] for s in shares]), canvases)


def test_processor_time_is_that_of_the_reading_threads(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that only wait for storage do not work, whatever the threads of the training do."""
    storage_waits, draw = 0.05, Canvases._draw_into

    def wait(self: Canvases, canvas: np.ndarray, position: int) -> None:
        time.sleep(storage_waits)

    def work(self: Canvases, canvas: np.ndarray, position: int) -> None:
        began = time.thread_time()
        while time.thread_time() - began < storage_waits:
            draw(self, canvas, position)

    with opened(pictures, None) as canvases:
        for read, works in ((wait, False), (work, True)):
            monkeypatch.setattr(Canvases, "_draw_into", read)
            (batch,) = EpochLoader(canvases, np.arange(2), 2, 1).epoch(0)
            assert batch.seconds >= storage_waits
            assert (batch.worked >= 2 * storage_waits) == works


def test_images_that_are_decoded_at_once_fit_the_memory(
    pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = 2 * Drawer(pictures, 16, 3).memory(0)
    monkeypatch.setattr(canvases_module, "decoding_budget", lambda: two)
    monkeypatch.setattr(canvases_module, "usable_cores", lambda: 4)
    pair, lock = threading.Barrier(2), threading.Lock()
    running, most = 0, 0
    draw = Drawer.draw_valid

    def counted(drawer: Drawer, position: int) -> np.ndarray | str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pair.wait(60)
        pixels = draw(drawer, position)
        with lock:
            running -= 1
        return pixels

    monkeypatch.setattr(Drawer, "draw_valid", counted)
    canvases = Canvases(pictures, 16, 3, cache=None, threads=4)
    assert canvases.read(range(26))[0].any()
    canvases.close()
    assert most == 2


def test_abandoned_epoch_leaves_no_thread(pictures: DatasetIndex, cache: Path) -> None:
    with opened(pictures, cache) as canvases:
        batches = EpochLoader(canvases, np.arange(len(pictures)), 2, 0).epoch(0)
        next(batches)
        batches.close()  # type: ignore[attr-defined]


# --- canvases


def test_images_are_scaled_down_but_never_up(tmp_path: Path) -> None:
    for name, size in (("large", (200, 100)), ("needle", (300, 1)), ("small", (6, 9))):
        Image.new("RGB", size, (10, 200, 90)).save(tmp_path / f"{name}.png")
    with opened(ingest(tmp_path), tmp_path / "cache") as canvases:
        pixels, valid_hw = canvases.read([0, 1, 2])
    assert pixels.shape == (3, 3, 32, 32)
    assert valid_hw.tolist() == [[16, 32], [1, 32], [9, 6]]
    for canvas, (height, width) in zip(pixels, valid_hw.tolist(), strict=True):
        assert (canvas[:, :height, :width].flatten(1).float().mean(dim=1).tolist()) == [10, 200, 90]
        assert canvas[:, height:].sum() == canvas[:, :, width:].sum() == 0


def test_canvas_is_no_larger_than_largest_image(pictures: DatasetIndex, cache: Path) -> None:
    for size, side in ((8, 16), (12, 24), (100, 24)):
        with opened(pictures, cache, size) as canvases:
            assert canvases.read([0])[0].shape == (1, 3, side, side)


def test_single_channel_is_luminance(pictures: DatasetIndex, cache: Path) -> None:
    with opened(pictures, cache, channels=1) as canvases:
        pixels, _ = canvases.read([3])
    expected = decode_image((pictures.root / pictures.paths[3]), channels=1)
    np.testing.assert_array_equal(pixels[0, 0, :24, :20].numpy(), expected[:, :, 0])


# --- the cache

# Of one data set: files by their ending.
CACHED = [".lock", ".npy", ".sha256", ".state", ".used", ".used"]


def test_cache_equals_decoding(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", per_class=4))
    kept = read_everything(index, tmp_path / "cache")
    assert cache_files(tmp_path / "cache") == CACHED
    no_folder = tmp_path / "pictures" / "class-0" / "00.png" / "no-folder"
    np.testing.assert_array_equal(read_everything(index, no_folder), kept)
    shutil.rmtree(tmp_path / "pictures")
    np.testing.assert_array_equal(read_everything(index, tmp_path / "cache"), kept)


def test_cache_depends_on_images_size_and_channels(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", per_class=2))
    fewer = ingest(image_folder(tmp_path / "fewer", per_class=1))
    for which, size, channels in ((index, 8, 3), (index, 4, 3), (index, 8, 1), (fewer, 8, 3)):
        with opened(which, tmp_path / "cache", size, channels):
            pass
    assert cache_files(tmp_path / "cache").count(".npy") == 4


def read_everything(index: DatasetIndex, cache: Path) -> np.ndarray:
    with opened(index, cache) as canvases:
        return everything(canvases)


def read_and_count_builds(index: DatasetIndex, cache: Path) -> tuple[np.ndarray, int]:
    with patch.object(CanvasFile, "_begin", autospec=True, side_effect=CanvasFile._begin) as build:
        return read_everything(index, cache), build.call_count


def test_concurrent_processes_share_one_cache(pool: GlooPool, tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", per_class=60))
    results = pool.call(4, read_and_count_builds, index, tmp_path / "cache")
    expected = read_everything(index, tmp_path / "other")
    for pixels, _ in results:
        np.testing.assert_array_equal(pixels, expected)
    assert sum(builds for _, builds in results) == 1  # the others waited for it
    assert cache_files(tmp_path / "cache") == CACHED


def read_with_small_files(index: DatasetIndex, cache: Path) -> tuple[np.ndarray, list[str]]:
    """Simulate a full disk: no file of this process may grow beyond 10 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        return read_everything(index, cache), cache_files(cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_failed_cache_write_falls_back_to_decoding(pool: GlooPool, tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures"))
    ((pixels, files),) = pool.call(1, read_with_small_files, index, tmp_path / "cache")
    assert {*files} == {".lock", ".sha256", ".used"}  # of the raw file and of the shards
    np.testing.assert_array_equal(pixels, read_everything(index, tmp_path / "other"))


def test_cache_is_limited_to_share_of_disk(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cache_module, "SHARE_OF_FREE_DISK", 0.0)
    with caplog.at_level(logging.WARNING):
        pixels = read_everything(pictures, tmp_path)
    assert "every epoch decodes them again" in caplog.text
    assert pixels.any()
    assert {*cache_files(tmp_path)} == {".lock", ".sha256", ".used"}


# --- images that change after ingest


@pytest.mark.parametrize("cached", [True, False])
def test_image_damaged_after_ingest_is_black(
    tmp_path: Path, cached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = image_folder(tmp_path / "pictures", per_class=2)
    index = ingest(root)
    (index.root / index.paths[1]).write_bytes((index.root / index.paths[1]).read_bytes()[:100])
    (index.root / index.paths[2]).unlink()
    cache = tmp_path / "cache" if cached else (index.root / index.paths[0]) / "no-folder"
    with opened(index, cache) as canvases, caplog.at_level(logging.WARNING):
        pixels = everything(canvases)
        everything(canvases)
    assert [bool(canvas.any()) for canvas in pixels] == [True, False, False, True, True, True]
    warnings = [r.getMessage() for r in caplog.records if "can no longer be read" in r.getMessage()]
    if not cached:  # logged once, not in every epoch
        assert sorted(line.split()[0] for line in warnings) == index.paths[1:3]
