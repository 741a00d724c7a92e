"""Images that become unreadable after ingest: never cached as black, reported, and limited in number."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasl_core.data import cache as cache_module
from dasl_core.data import ingest as ingest_module
from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.unreadable import too_many
from dasl_core.distributed import rank
from tests.support.gloo_pool import GlooPool
from tests.support.small_shards import read_with_reasons
from tests.support.training_world import Recorder, image_folder, ingest, recorded, resolved, run

pytestmark = pytest.mark.usefixtures("without_plots")


def shown(pixels: np.ndarray) -> list[int]:
    return [position for position, canvas in enumerate(pixels) if canvas.any()]


def hide(index: DatasetIndex, *positions: int) -> None:
    for position in positions:
        path = index.root / index.paths[position]
        path.rename(path.with_name(f".{path.name}"))


def restore(index: DatasetIndex) -> None:
    for hidden in index.root.rglob(".*.png"):
        hidden.rename(hidden.with_name(hidden.name[1:]))


@pytest.fixture
def index(tmp_path: Path) -> DatasetIndex:
    """A separate data set of 30 images, of which up to three may be unreadable."""
    return ingest(image_folder(tmp_path / "pictures", per_class=10))


@pytest.mark.parametrize(
    ("images", "bearable"),
    [
        (1, 0),
        (9, 0),
        (10, 1),
        (60, 6),
        (100, 10),
        (999, 10),
        (1000, 10),
        (5000, 50),
        (10**6, 10**4),
    ],
)
def test_tolerated_number_of_unreadable_images(images: int, bearable: int) -> None:
    assert not too_many(bearable, images)
    assert too_many(bearable + 1, images)


# --- the cache


def test_unreadable_images_are_read_again_into_cache(index: DatasetIndex, tmp_path: Path) -> None:
    everything, _ = read_with_reasons(index, tmp_path / "whole")
    cache = tmp_path / "cache"
    hide(index, 4, 7)
    pixels, unreadable = read_with_reasons(index, cache)
    assert unreadable == dict.fromkeys((4, 7), "the file does not exist")
    assert shown(pixels) == [position for position in range(30) if position not in (4, 7)]

    # One image is restored and written in place; the other one is still listed as missing.
    restore(index)
    hide(index, 7)
    (file,) = cache.glob("*.npy")
    inode = file.stat().st_ino
    pixels, unreadable = read_with_reasons(index, cache)
    assert list(unreadable) == [7]
    np.testing.assert_array_equal(pixels[4], everything[4])

    restore(index)
    pixels, unreadable = read_with_reasons(index, cache)
    assert unreadable == {}
    np.testing.assert_array_equal(pixels, everything)
    assert file.stat().st_ino == inode
    assert sorted(path.suffix for path in cache.glob("canvases-*")) == [
        ".lock",
        ".npy",
        ".sha256",
        ".state",
        *(".used", ".used"),
    ]
    shutil.rmtree(index.root)  # from here on only the cache remains, and it is complete
    np.testing.assert_array_equal(read_with_reasons(index, cache)[0], everything)


def test_image_that_another_process_reads_again_stays_black(
    index: DatasetIndex, tmp_path: Path
) -> None:
    """Both have mapped the file, and the other one may not have written all of the canvas."""
    hide(index, 4)
    canvases = Canvases(index, 16, 3, cache=tmp_path / "cache", threads=1)
    restore(index)
    assert shown(read_with_reasons(index, tmp_path / "cache")[0]) == list(range(30))
    assert shown(canvases.read([3, 4, 5])[0].numpy()) == [0, 2]
    canvases.close()


@pytest.mark.parametrize("cached", [True, False])
def test_image_that_became_link_out_of_folder_is_black(
    index: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    if not cached:
        monkeypatch.setattr(cache_module, "SHARE_OF_FREE_DISK", 0)
    image = index.root / index.paths[4]
    secret = shutil.copy(image, tmp_path / "secret.png")
    image.unlink()
    image.symlink_to(secret)
    pixels, unreadable = read_with_reasons(index, tmp_path / "cache")
    assert not pixels[4].any()
    assert unreadable[4].startswith("it is a link that leads out of the data set's folder")


def test_no_cache_with_too_many_missing_files(index: DatasetIndex, tmp_path: Path) -> None:
    moved = index.root.rename(tmp_path / "unmounted")
    pixels, unreadable = read_with_reasons(index, tmp_path / "cache")
    assert not pixels.any()
    assert len(unreadable) == 30
    assert not list((tmp_path / "cache").glob("*.npy"))
    moved.rename(index.root)
    pixels, unreadable = read_with_reasons(index, tmp_path / "cache")
    assert shown(pixels) == list(range(30))
    assert unreadable == {}


class Killed(BaseException):
    """Simulates SIGKILL at this point."""


@pytest.mark.parametrize("mending", [False, True])
def test_kill_during_cache_build_loses_no_image(
    index: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mending: bool
) -> None:
    """Kill the build before each disk call in turn, until one build completes."""
    expected, _ = read_with_reasons(index, tmp_path / "whole")
    for survived in range(20):
        cache = tmp_path / f"cache-{survived}"
        hide(index, 4, 7)
        if mending:
            read_with_reasons(index, cache)
            restore(index)
            hide(index, 7)
        left = [survived]

        def step(original: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def counted(*arguments: Any, **keywords: Any) -> Any:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return original(*arguments, **keywords)

            return counted

        died = False
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", step(os.fsync))
            patch.setattr(Path, "replace", step(Path.replace))
            patch.setattr(Path, "unlink", step(Path.unlink))
            try:
                read_with_reasons(index, cache)
            except Killed:
                died = True
        restore(index)
        pixels, unreadable = read_with_reasons(index, cache)
        np.testing.assert_array_equal(pixels, expected)
        assert unreadable == {}
        if not died:
            assert survived >= (3 if mending else 5)
            return
    raise AssertionError("no run got through")


# --- runs


def test_few_unreadable_images_are_reported(index: DatasetIndex, tmp_path: Path) -> None:
    hide(index, 4, 7)
    reporter = recorded(resolved(index), index, tmp_path / "cache", tmp_path / "out")
    ((kind, message, data),) = reporter.events
    assert kind == "images_unreadable"
    assert "2 of the 30 images of the data set 'pictures' can no longer be read" in message
    paths = [index.paths[4], index.paths[7]]
    assert data == {"dataset": "pictures", "count": 2, "images": paths}
    metrics = json.loads((reporter.last_checkpoint / "metrics.json").read_text())
    assert metrics["unreadable_images"] == 2


def test_unreadable_images_are_counted_without_cache(index: DatasetIndex, tmp_path: Path) -> None:
    (index.root / index.paths[4]).write_bytes((index.root / index.paths[4]).read_bytes()[:200])
    no_folder = (index.root / index.paths[0]) / "cache"
    spec = resolved(index, train={"batch_size": 9}, evaluate={"every_epochs": 1})
    reporter = recorded(spec, index, no_folder, tmp_path / "out")
    assert [kind for kind, _, _ in reporter.events] == ["images_not_cached", "images_unreadable"]


@pytest.mark.parametrize("cached", [True, False])
def test_too_many_unreadable_images_fail_run_at_start(
    index: DatasetIndex, tmp_path: Path, cached: bool
) -> None:
    hide(index, 3, 4, 5, 7)
    cache = tmp_path / "cache" if cached else (index.root / index.paths[0]) / "cache"
    reporter = Recorder(tmp_path / "out")
    with pytest.raises(
        ValueError,
        match=r"4 of the 30 images of the data set 'pictures' can no longer be read, such as "
        r"class-0/03\.png \(the file does not exist\); mount or restore .*register its folder again",
    ):
        run(resolved(index), index, cache, reporter)
    assert (reporter.points, reporter.evaluations, reporter.checkpoints) == ([], [], [])


def refused(index: DatasetIndex, caches: list[Path], out: Path) -> str:
    """Return a rank's error; each rank has its own cache, as on separate machines."""
    reporter = Recorder(out) if rank() == 0 else None
    try:
        run(resolved(index), index, caches[rank()], reporter)
    except ValueError as error:
        return str(error)
    return "no error"


def test_all_ranks_fail_when_one_lacks_images(
    pool: GlooPool, index: DatasetIndex, tmp_path: Path
) -> None:
    caches = [tmp_path / "first", tmp_path / "second"]
    read_with_reasons(
        index, caches[0]
    )  # the first machine has all images, the second one none of them
    index.root.rename(tmp_path / "unmounted")
    errors = pool.call(2, refused, index, caches, tmp_path / "out")
    assert errors[0] == errors[1]
    assert "is missing, with" in errors[0]


# --- images that cannot be decoded


def test_damaged_images_are_left_out_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path / "pictures", per_class=10)
    files = sorted(folder.rglob("*.png"))
    for position in (0, 11, 12, 13, 29):
        files[position].write_bytes(files[position].read_bytes()[:-40])
    monkeypatch.setattr(ingest_module, "sample_positions", lambda headers: [1, 2])
    index = ingest(folder)
    assert len(index) == 30
    spec = resolved(index, train={"epochs": 1})
    recorder = recorded(spec, index, tmp_path / "cache", tmp_path / "run")
    [event] = [data for kind, _, data in recorder.events if kind == "images_damaged"]
    assert (event["dataset"], event["count"]) == ("pictures", 5)
    assert event["images"][0]["path"] == index.paths[0]
    assert event["images"][0]["reason"].startswith("the image is damaged: ")
    assert not [kind for kind, *_ in recorder.events if kind == "images_unreadable"]
