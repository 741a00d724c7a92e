"""Shapes in files that torch.save wrote, read without torch."""

import io
import tracemalloc
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dasl_core.models.warm_start import read_weights
from dasl_core.spec.pickled_shapes import PickledCode, pickled_shapes

NETWORK = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
SHAPES = [(4, 3, 3, 3), (4,), (4,), (4,), (4,), (4,), ()]


@pytest.mark.parametrize(
    "options", [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}]
)
def test_shapes_of_a_state_dict_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.save(NETWORK.state_dict(), tmp_path / "w.pth", **options)
    assert pickled_shapes(tmp_path / "w.pth") == SHAPES


def test_tensors_are_found_wherever_they_are(tmp_path: Path) -> None:
    shared = torch.ones(3, 2, dtype=torch.bfloat16)
    content = {
        "model": OrderedDict(NETWORK.named_parameters()),
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2, dtype=torch.uint16)}}, "lr": [0.1]},
        "args": {"size": torch.Size([2]), "dtype": torch.float32, "on": [True, None, 2**70]},
        "tied": [shared, shared],
    }
    torch.save(content, tmp_path / "w.pth")
    assert pickled_shapes(tmp_path / "w.pth") == [*SHAPES[:2], (4,), (4,), (2,), (3, 2), (3, 2)]


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


SAVED = saved(NETWORK.state_dict())


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("opened"),))


@pytest.mark.parametrize("content", [Namespace(a=1), torch.ones(2).to_sparse(), {1}], ids=range(3))
def test_what_no_state_dict_contains_cannot_be_told(tmp_path: Path, content: Any) -> None:
    torch.save({"a": torch.ones(2), "b": content}, tmp_path / "w.pth")
    assert pickled_shapes(tmp_path / "w.pth") is None
    assert read_weights(tmp_path / "w.pth").keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Evil(), "__builtin__.getattr"),
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (np.ones(2), "numpy"),
        (Path("a"), "pathlib"),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, name: str, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "w.pth"
    state = {"a": torch.ones(2), "b": content}
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(PickledCode) as refusal:
        pickled_shapes(file)
    assert str(refusal.value).startswith(name)
    with pytest.raises(
        ValueError, match="contains pickled code"
    ):  # what torch loads is not refused
        read_weights(file)
    assert not (tmp_path / "opened").exists()


def written(folder: Path, content: bytes) -> Path:
    """Write a file as torch.save does, with this pickle."""
    file = folder / "w.pth"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w/data.pkl", content)
    return file


@pytest.mark.parametrize(
    "content",
    [
        b"ctorch\nload\n(S'opened'\ntR.",
        b"ctorch\nload\n(N}S'__call__'\nI1\nstb.",
        b"K\x01r\xff\xff\xff\xff.",  # memo of 4 billion entries
        b"\x8b\xff\xff\xff\x7f\x01.",  # a number of 2 GB
        b"\x8e" + b"\xff" * 8 + b".",  # bytes
        b")" + b"\x85" * 30_000 + b".",  # a deep tuple
        b"K\x01" + b"2\x86" * 9_000 + b"}K\x01s.",  # of exponential size
        b"(" * 30_000 + b".",
        b"]" * 140_000 + b".",  # too many instructions
        b"(" + b"\x8a\xff" + b"\x7f" * 255 + b"t.",
    ],
    ids=range(10),
)
def test_hostile_pickle_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not pickled_shapes(written(tmp_path, content))
    assert not (tmp_path / "opened").exists()


LONG_TEXT = b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"X\5\0\0\0torchq\0" + LONG_TEXT + b"q\1" + b"h\0h\1\x93" * 300,
        LONG_TEXT + b"q\0(" + b"h\0" * 300 + b"tX\1\0\0\0x\x93",
    ],
    ids=["names", "tuple"],
)
def test_texts_are_not_copied(tmp_path: Path, content: bytes) -> None:
    file = written(tmp_path, b"\x80\4" + content + b".")
    tracemalloc.start()
    pickled_shapes(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6, "300 copies are 30 MB"


@settings(max_examples=50)
@given(st.data())
def test_damaged_pickle_raises_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.pth"
    content = bytearray(SAVED)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 900))
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    file.write_bytes(content)
    try:
        shapes = pickled_shapes(file)
    except PickledCode:
        return  # of a damaged name
    assert shapes is None or all(isinstance(shape, tuple) for shape in shapes)
