"""Building of the cache file: continued after a kill at any point, watched by waiting processes, on a full disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasl_core.data import canvas_file
from dasl_core.data.cache import CacheFolder
from dasl_core.data.canvas_file import CanvasFile
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from tests.support.gloo_pool import GlooPool

DEADLINE = 60
IMAGES = 27


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report after each image, and look often."""
    monkeypatch.setattr(canvas_file, "_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(canvas_file, "_WAIT_SECONDS", 0.001)


@pytest.fixture(scope="module")
def undisturbed(pictures: DatasetIndex, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file that a build without interruption writes."""
    return built(pictures, tmp_path_factory.mktemp("undisturbed"))


def build(
    index: DatasetIndex, cache: Path, on_read: Callable[[int], None] = lambda images: None
) -> np.ndarray | None:
    folder = CacheFolder(cache)
    try:
        return CanvasFile(folder, Drawer(index, 16, 3)).open(on_read)
    finally:
        folder.close()


def built(index: DatasetIndex, cache: Path) -> bytes:
    """Build the file and return its content; nothing else may be left beside it and its lock."""
    build(index, cache)
    files = sorted(cache.glob("canvases-*"))
    assert [file.suffix for file in files] == [".lock", ".npy", ".used"]
    return files[1].read_bytes()


class Stopped(Exception):
    """Raised by a callback to end a build."""


def stop_after(images: int) -> Callable[[int], None]:
    def on_read(read: int) -> None:
        if read >= images:
            raise Stopped

    return on_read


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that are decoded."""
    drawn: list[int] = []
    draw = Drawer.draw

    def counted(drawer: Drawer, position: int) -> np.ndarray | str:
        drawn.append(position)
        return draw(drawer, position)

    monkeypatch.setattr(Drawer, "draw", counted)
    return drawn


# --- continuing


def test_stopped_build_is_continued(
    pictures: DatasetIndex, tmp_path: Path, undisturbed: bytes, drawn: list[int]
) -> None:
    with pytest.raises(Stopped):
        build(pictures, tmp_path, stop_after(9))
    first = len(drawn)
    assert 9 <= first < IMAGES
    assert built(pictures, tmp_path) == undisturbed
    assert sorted(drawn) == list(range(IMAGES))  # each once


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_continued_file_equals_undisturbed_one(
    pictures: DatasetIndex,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: bytes,
    seed: int,
) -> None:
    """Whatever part of the file and of its checksums has reached the disk, only whole canvases are kept."""
    chance = random.Random(seed)
    cache = tmp_path_factory.mktemp("cache")
    with pytest.raises(Stopped):
        build(pictures, cache, stop_after(1))
    (partial,) = cache.glob("*.partial")
    size = 3 * 24 * 24
    start = len(undisturbed) - IMAGES * size
    whole = np.frombuffer(undisturbed, np.uint8)[start:].reshape(IMAGES, size)
    canvases, checksums = np.zeros_like(whole), np.zeros(IMAGES, "<u4")
    intact = set()
    for position, canvas in enumerate(whole):
        state = chance.choice(("absent", "whole", "no checksum", "torn", "stale"))
        reached = chance.randrange(size) if state == "torn" else size
        if state != "absent":
            canvases[position, :reached] = canvas[:reached]
        if state == "stale":  # a canvas that lost one of its sectors
            canvases[position, chance.randrange(size)] ^= 1 + chance.randrange(255)
        if state in ("whole", "torn", "stale"):
            checksums[position] = zlib.crc32(canvas.tobytes())
        if (canvases[position] == canvas).all() and checksums[position]:
            intact.add(position)
    partial.write_bytes(undisturbed[:start] + canvases.tobytes())
    partial.with_suffix(".checksums").write_bytes(checksums.tobytes())
    with pytest.MonkeyPatch.context() as patch:
        drawn: list[int] = []
        draw = Drawer.draw
        patch.setattr(Drawer, "draw", lambda self, n: drawn.append(n) or draw(self, n))  # type: ignore[func-returns-value]
        assert built(pictures, cache) == undisturbed
    assert set(drawn) == set(range(IMAGES)) - intact


@pytest.mark.parametrize("spoilt", ["size", "header", "checksums", "no checksums"])
def test_partial_file_of_unknown_content_is_not_continued(
    pictures: DatasetIndex, tmp_path: Path, undisturbed: bytes, drawn: list[int], spoilt: str
) -> None:
    with pytest.raises(Stopped):
        build(pictures, tmp_path, stop_after(9))
    (partial,) = tmp_path.glob("*.partial")
    checksums = partial.with_suffix(".checksums")
    if spoilt == "size":
        os.truncate(partial, partial.stat().st_size - 1)
    elif spoilt == "header":
        partial.write_bytes(b"\0" * partial.stat().st_size)
    elif spoilt == "checksums":
        os.truncate(checksums, 4 * (IMAGES - 1))
    else:
        checksums.unlink()
    drawn.clear()
    assert built(pictures, tmp_path) == undisturbed
    assert sorted(drawn) == list(range(IMAGES))


def test_partial_file_of_other_images_is_not_continued(
    pictures: DatasetIndex, tmp_path: Path, drawn: list[int]
) -> None:
    with pytest.raises(Stopped):
        build(pictures, tmp_path, stop_after(9))
    drawn.clear()
    fewer = replace(
        pictures,
        paths=pictures.paths[1:],
        sizes=pictures.sizes[1:],
        locations=pictures.locations[1:],
        checksums=pictures.checksums[1:],
    )
    canvases = build(fewer, tmp_path)
    assert canvases is not None
    assert sorted(drawn) == list(range(IMAGES - 1))


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
    build(index, cache)


def test_kill_during_write_loses_no_whole_image(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path, undisturbed: bytes, drawn: list[int]
) -> None:
    chance = random.Random(3)
    for _ in range(3):  # each continues where the last one was killed
        with pytest.raises(AssertionError, match="its process died"):
            pool.call(1, build_until_killed, pictures, tmp_path, chance.randrange(4, 13))
    assert built(pictures, tmp_path) == undisturbed
    assert IMAGES - 3 * 6 <= len(drawn) <= IMAGES - 3


# --- waiting


class Gate:
    """Holds back the decoding from the image of a position on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        draw = Drawer.draw

        def gated(drawer: Drawer, number: int) -> np.ndarray | str:
            if number >= position:
                self.reached.set()
                assert self.opened.wait(DEADLINE)
            return draw(drawer, number)

        monkeypatch.setattr(Drawer, "draw", gated)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads in place of processes: each opens the lock by itself."""
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_waiting_process_sees_progress_of_builder(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
) -> None:
    gate = Gate(monkeypatch, 10)
    seen: list[int] = []

    def watch(images: int) -> None:
        seen.append(images)
        if images == 10:
            gate.opened.set()

    first = threads.submit(build, pictures, tmp_path)
    assert gate.reached.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, watch)
    canvases, others = first.result(DEADLINE), second.result(DEADLINE)
    assert 10 in seen
    assert seen == sorted(seen)
    assert canvases is not None
    assert others is not None
    np.testing.assert_array_equal(canvases, others)


def test_waiting_process_continues_for_stopped_one(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
    undisturbed: bytes,
) -> None:
    gate = Gate(monkeypatch, 10)
    waiting = threading.Event()
    first = threads.submit(build, pictures, tmp_path, stop_after(11))
    assert gate.reached.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, lambda images: waiting.set())
    assert waiting.wait(DEADLINE)
    gate.opened.set()
    with pytest.raises(Stopped):
        first.result(DEADLINE)
    second.result(DEADLINE)
    assert built(pictures, tmp_path) == undisturbed


def test_waiting_process_builds_for_one_that_was_stopped_before_it_began(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
    undisturbed: bytes,
) -> None:
    """Stopped while it looks which files exist: nothing is written then, and no disk is full."""
    looking, waiting = threading.Event(), threading.Event()

    def stop(images: int) -> None:
        looking.set()
        assert waiting.wait(DEADLINE)
        raise Stopped

    first = threads.submit(build, pictures, tmp_path, stop)
    assert looking.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, lambda images: waiting.set())
    with pytest.raises(Stopped):
        first.result(DEADLINE)
    second.result(DEADLINE)
    assert built(pictures, tmp_path) == undisturbed


# --- a full disk


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: int, content: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", write)


def test_full_disk_leaves_nothing(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch)
    with pytest.raises(OSError, match=r"No space left on device; .*\.npy takes 0 MiB"):
        build(pictures, tmp_path)
    assert sorted(file.suffix for file in tmp_path.glob("canvases-*")) == [".lock", ".used"]


def test_waiting_process_does_not_try_full_disk_again(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
) -> None:
    gate, waiting = Gate(monkeypatch, 10), threading.Event()
    first = threads.submit(build, pictures, tmp_path)
    assert gate.reached.wait(DEADLINE)
    second = threads.submit(build, pictures, tmp_path, lambda images: waiting.set())
    assert waiting.wait(DEADLINE)
    fill_disk(monkeypatch)
    gate.opened.set()
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
    assert [*tmp_path.glob("*.partial")]
    assert built(pictures, tmp_path) == undisturbed
