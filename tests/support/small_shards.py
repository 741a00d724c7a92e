"""Canvases in small shards, for tests."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dasl_core.data import cache_build, canvas_file, shards
from dasl_core.data.cache import MAX_BYTES_VARIABLE
from dasl_core.data.canvas_file import CanvasFile
from dasl_core.data.canvases import Canvases
from dasl_core.data.coding import Form
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.data.shard_store import USED, VARIABLE, shared_sets, shared_store
from dasl_core.data.unused import remove_unused

IMAGES = 27
PER_SHARD = 4
SHARDS = 7


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", int(PER_SHARD * 20 * 24 * 3 * 0.6) + 1)
    monkeypatch.setattr(CanvasFile, "open", no_room)
    make_eager(monkeypatch)
    monkeypatch.delenv(VARIABLE, raising=False)


def make_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let builds flush and report after each image, and wait briefly."""
    monkeypatch.setattr(canvas_file, "_FLUSH_BYTES", 1)
    monkeypatch.setattr(cache_build, "_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(cache_build, "_WAIT_SECONDS", 0.001)


def no_room(file: CanvasFile) -> None:
    """Refuse a file of raw canvases."""
    raise OSError(errno.ENOSPC, "they do not fit")


@contextmanager
def opened(
    index: DatasetIndex,
    cache: Path | None,
    form: Form = "exact",
    channels: int = 3,
    on_read: Callable[[int], None] = lambda images: None,
) -> Iterator[Canvases]:
    canvases = Canvases(index, 16, channels, cache=cache, threads=2, form=form, on_read=on_read)
    try:
        yield canvases
    finally:
        canvases.close()


def read_all(
    index: DatasetIndex, cache: Path, form: Form = "exact", channels: int = 3
) -> np.ndarray:
    with opened(index, cache, form, channels) as canvases:
        assert canvases.unreadable == {}
        return canvases.read(range(len(index)))[0].numpy()


def read_with_reasons(index: DatasetIndex, cache: Path | None) -> tuple[np.ndarray, dict[int, str]]:
    """Read all canvases; return them and the unreadable images."""
    with opened(index, cache) as canvases:
        return canvases.read(range(len(index)))[0].numpy(), canvases.unreadable


def record_drawn(patch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the images that are decoded from now on."""
    drawn: list[int] = []
    draw = Drawer.draw_valid

    def counted(drawer: Drawer, position: int) -> np.ndarray | str:
        drawn.append(position)
        return draw(drawer, position)

    patch.setattr(Drawer, "draw_valid", counted)
    return drawn


def drawn_all(index: DatasetIndex, channels: int = 3) -> np.ndarray:
    drawer = Drawer(index, 16, channels)
    return np.stack([drawer.place(drawer.draw_valid(at)) for at in range(len(index))])


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".shard"}


def check_second_node(pictures: DatasetIndex, tmp_path: Path, drawn: list[int]) -> None:
    """Check that a node with the same store decodes nothing."""
    expected = read_all(pictures, tmp_path / "first")
    drawn.clear()
    seen: list[int] = []
    with opened(pictures, tmp_path / "second", on_read=seen.append) as canvases:
        np.testing.assert_array_equal(canvases.read(range(IMAGES))[0].numpy(), expected)
    assert drawn == []
    assert seen == sorted(seen)
    assert seen[-1] == IMAGES
    assert content_of(tmp_path / "first") == content_of(tmp_path / "second")


def check_little_room(pictures: DatasetIndex, tmp_path: Path, drawn: list[int]) -> None:
    """Check that a node reads from the store what does not fit its cache."""
    expected = read_all(pictures, tmp_path / "first")
    size = max(map(len, content_of(tmp_path / "first").values()))
    drawn.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MAX_BYTES_VARIABLE, str(2 * size + 10))
        cache = tmp_path / "small" / "cache"
        with opened(pictures, cache) as canvases:
            for _ in range(2):
                np.testing.assert_array_equal(canvases.read(range(IMAGES))[0].numpy(), expected)
            assert canvases.not_cached is None
        assert len(content_of(cache)) == 2
        # Without any room, a node builds for the others, one shard at a time.
        patch.setenv(MAX_BYTES_VARIABLE, "0")
        patch.setattr(shards, "SHARD_BYTES", 1 << 20)
        with opened(pictures, tmp_path / "none") as canvases:
            assert content_of(tmp_path / "none") == {}
            drawn.clear()
            np.testing.assert_array_equal(canvases.read(range(IMAGES))[0].numpy(), expected)
    assert drawn == []


def check_damaged_shard(pictures: DatasetIndex, tmp_path: Path, drawn: list[int]) -> None:
    """Check that a damaged shard of the store is built again and replaced."""
    expected = read_all(pictures, tmp_path / "first")
    (digest,) = {file.name.split("-")[1] for file in (tmp_path / "first").glob("*.shard")}
    shared = shared_store(digest)
    assert shared is not None
    whole = shared.read("00002.shard", 0, shared.sizes()["00002.shard"])
    shared.write("00002.shard", bytes([whole[0] ^ 1]) + whole[1:])
    drawn.clear()
    np.testing.assert_array_equal(read_all(pictures, tmp_path / "second"), expected)
    assert drawn == [8, 9, 10, 11]
    assert shared.read("00002.shard", 0, len(whole)) == whole


def check_unused_set(pictures: DatasetIndex, tmp_path: Path, drawn: list[int]) -> None:
    """Check that a set in the store is removed after it was unused for long, and that other files stay."""
    expected = read_all(pictures, tmp_path / "first")
    [digest] = shared_sets()
    store = shared_store(digest)
    assert store is not None
    remove_unused(tmp_path, keep=3600)
    assert len(store.sizes()) == SHARDS + 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MAX_BYTES_VARIABLE, "0")
        with opened(pictures, tmp_path / "second" / "cache") as canvases:
            store.write("notes.txt", b"of somebody")
            store.write(USED, b"1000000000")
            remove_unused(tmp_path / "second", keep=3600)
            assert list(store.sizes()) == ["notes.txt"]
            # A run that still needed it has the same values.
            drawn.clear()
            np.testing.assert_array_equal(canvases.read(range(IMAGES))[0].numpy(), expected)
            assert sorted(drawn) == list(range(IMAGES))
    np.testing.assert_array_equal(read_all(pictures, tmp_path / "third"), expected)
    assert len(store.sizes()) == SHARDS + 3
    store.write(USED, b"no time")
    remove_unused(tmp_path / "second", keep=3600)
    assert len(store.sizes()) == SHARDS + 3
    assert store.read(USED, 0, 10) > b"1000000000"


STORE_CHECKS = (check_second_node, check_little_room, check_damaged_shard, check_unused_set)
"""What holds of a store of any kind."""
