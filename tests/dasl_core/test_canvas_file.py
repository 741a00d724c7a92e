"""Building of the cache file: continued after a kill at any point, watched by waiting processes, on a full disk."""

import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasl_core.data.cache import CacheFolder
from dasl_core.data.canvas_file import CanvasFile
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from tests.support.gloo_pool import GlooPool
from tests.support.small_shards import make_eager, record_drawn

DEADLINE = 60
IMAGES = 27
CANVAS_BYTES = 3 * 24 * 24


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush and report after each image, and look often."""
    make_eager(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(pictures: DatasetIndex, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file that a build without interruption writes."""
    return built(pictures, tmp_path_factory.mktemp("undisturbed"))


def build(
    index: DatasetIndex, cache: Path, on_read: Callable[[int], None] = lambda images: None
) -> np.ndarray | None:
    folder = CacheFolder(cache)
    try:
        return CanvasFile(folder, Drawer(index, 16, 3), on_read).open()
    finally:
        folder.close()


def built(index: DatasetIndex, cache: Path) -> bytes:
    """Build the file and return its content; nothing else may be left beside it and its lock."""
    build(index, cache)
    files = sorted(cache.glob("canvases-*"))
    assert [file.suffix for file in files] == [".lock", ".npy", ".state", ".used"]
    return files[1].read_bytes()


class Stopped(Exception):
    """Raised by a callback to end a build."""


def stop_after(images: int) -> Callable[[int], None]:
    def on_read(read: int) -> None:
        if read >= images:
            raise Stopped

    return on_read


# --- continuing


@settings(max_examples=15, deadline=None)
@given(stopped=st.integers(1, IMAGES - 1), seed=st.integers(0, 2**32 - 1))
def test_stopped_build_continues_behind_what_is_on_the_disk(
    pictures: DatasetIndex,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: bytes,
    stopped: int,
    seed: int,
) -> None:
    """Whatever part of the canvases behind the last flush has reached the disk, they are drawn again."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.raises(Stopped):
        build(pictures, cache, stop_after(stopped))
    (file,) = cache.glob("*.npy")
    content = bytearray(file.read_bytes())
    assert len(content) == len(undisturbed)
    rest = len(undisturbed) - (IMAGES - stopped) * CANVAS_BYTES
    assert content[:rest] == undisturbed[:rest]
    file.write_bytes(content[:rest] + random.Random(seed).randbytes(len(content) - rest))
    with pytest.MonkeyPatch.context() as patch:
        drawn = record_drawn(patch)
        assert built(pictures, cache) == undisturbed
    assert sorted(drawn) == list(range(stopped, IMAGES))


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("spoilt", ["size", "empty", "header", "state", "no state"])
def test_file_of_unknown_content_is_rebuilt(
    pictures: DatasetIndex,
    tmp_path: Path,
    undisturbed: bytes,
    spoilt: str,
    complete: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nullcontext() if complete else pytest.raises(Stopped):
        build(pictures, tmp_path, stop_after(IMAGES + 1 if complete else 9))
    (file,) = tmp_path.glob("*.npy")
    state = file.with_suffix(".state")
    if spoilt in ("size", "empty"):
        os.truncate(file, file.stat().st_size - 1 if spoilt == "size" else 0)
    elif spoilt == "header":
        file.write_bytes(b"\0" * file.stat().st_size)
    elif spoilt == "state":
        state.write_bytes(state.read_bytes()[:-1])
    else:
        state.unlink()
    with pytest.MonkeyPatch.context() as patch:
        drawn = record_drawn(patch)
        assert built(pictures, tmp_path) == undisturbed
    assert sorted(drawn) == list(range(IMAGES))
    assert (f"{file} is damaged" in caplog.text) == (spoilt != "no state")


def build_until_killed(index: DatasetIndex, cache: Path, writes: int) -> None:
    """Kill this process in one of its writes, of which half reaches the file."""
    pwrite, lock = os.pwrite, threading.Lock()
    left = writes

    def write(file: int, content: memoryview, offset: int) -> int:
        nonlocal left
        with lock:
            left -= 1
            if left < 0:
                pwrite(file, content[: len(content) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
        return pwrite(file, content, offset)

    os.pwrite = write  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        make_eager(patch)
        build(index, cache)


def test_kill_during_write_loses_no_whole_image(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path, undisturbed: bytes
) -> None:
    chance = random.Random(3)
    for _ in range(3):  # each continues where the last one was killed
        with pytest.raises(AssertionError, match="its process died"):
            pool.call(1, build_until_killed, pictures, tmp_path, chance.randrange(4, 13))
    with pytest.MonkeyPatch.context() as patch:
        drawn = record_drawn(patch)
        assert built(pictures, tmp_path) == undisturbed
    assert 0 < len(drawn) < IMAGES


# --- waiting


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads in place of processes: each opens the lock by itself."""
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.mark.parametrize("stopped", [0, 11])
def test_waiting_process_builds_for_stopped_one(
    pictures: DatasetIndex,
    tmp_path: Path,
    threads: ThreadPoolExecutor,
    undisturbed: bytes,
    stopped: int,
) -> None:
    """Stopped after some images, or while it looks which files exist: no disk is full."""
    reached, waiting = threading.Event(), threading.Event()

    def stop(images: int) -> None:
        if images >= stopped:
            reached.set()
            assert waiting.wait(DEADLINE)
            raise Stopped

    first = threads.submit(build, pictures, tmp_path, stop)
    assert reached.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, lambda images: waiting.set())
    with pytest.raises(Stopped):
        first.result(DEADLINE)
    second.result(DEADLINE)
    assert built(pictures, tmp_path) == undisturbed


# --- a full disk


def fill_disk(monkeypatch: pytest.MonkeyPatch, room: int = 0) -> None:
    """Let the disk have room for this number of canvases."""
    pwrite, left = os.pwrite, iter(range(room))

    def write(file: int, content: Any, offset: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(file, content, offset)

    monkeypatch.setattr(os, "pwrite", write)


def test_full_disk_leaves_nothing(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, room=9)
    with pytest.raises(OSError, match=r"No space left on device; .*\.npy takes 0 MiB"):
        build(pictures, tmp_path)
    assert sorted(file.suffix for file in tmp_path.glob("canvases-*")) == [".lock", ".used"]


def test_waiting_process_does_not_try_full_disk_again(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
) -> None:
    reached, waiting = threading.Event(), threading.Event()

    def hold(images: int) -> None:
        reached.set()
        assert waiting.wait(DEADLINE)
        fill_disk(monkeypatch)

    first = threads.submit(build, pictures, tmp_path, hold)
    assert reached.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, lambda images: waiting.set())
    with pytest.raises(OSError, match="No space left"):
        first.result(DEADLINE)
    with pytest.raises(OSError, match="another process could not write"):
        second.result(DEADLINE)


def test_unavailable_disk_keeps_what_is_written(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes
) -> None:
    with monkeypatch.context() as patch:

        def sync(file: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", sync)
        with pytest.raises(OSError, match="Input/output error"):
            build(pictures, tmp_path)
    assert [*tmp_path.glob("*.npy")]
    assert built(pictures, tmp_path) == undisturbed
