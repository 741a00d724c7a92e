"""Training state on disk: exact, without pickle, and with detection of damage."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from dasl_core.seeds import random_state, restore_random_state
from dasl_core.spec import ResolvedOptimizer
from dasl_core.train.optim import build_optimizer
from dasl_core.train.serialization import STRUCTURE, TENSORS, StateCopy, load_state
from tests.support.training_world import assert_same

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
TENSOR = st.builds(
    lambda shape, dtype, seed: (
        torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 3
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 1000),
)
# All floats except NaN, which does not equal itself; any text, including slashes and our own markers.
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | TENSOR
)
KEY = st.text(max_size=3) | st.sampled_from(["a/b", "__tensor__", "__pairs__", "0"])
VALUE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEY, inner, max_size=3)
        | st.dictionaries(st.integers(-2, 2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(KEY, VALUE, max_size=4))
def test_state_round_trip(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        StateCopy.copy(state).write(Path(folder))
        assert_same(state, load_state(Path(folder)), "state")


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_optimizer_resumes_exactly(tmp_path: Path, name: str) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        chosen = ResolvedOptimizer.model_validate(
            {
                "name": name,
                "lr": 0.1,
                "base_lr": 0.1,
                "lr_scaling": "linear",
                "lr_end": 0.0,
                "step_decay": None,
                "head_lr": 1.0,
                "layer_decay": 1.0,
                "weight_decay": 0.01,
                "weight_decay_end": 0.01,
            }
        )
        return model, build_optimizer(chosen, model, {})

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        images = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer, 0)
    step(model, optimizer, 1)
    StateCopy.copy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}).write(
        tmp_path
    )
    other, its_optimizer = build()
    state = load_state(tmp_path)
    other.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])
    for number in (2, 3):
        step(model, optimizer, number)
        step(other, its_optimizer, number)
    assert_same(dict(model.state_dict()), dict(other.state_dict()), "model")


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0).view(2, 3)
    StateCopy.copy({"whole": whole, "turned": whole.T, "row": whole[0]}).write(tmp_path)
    whole.zero_()
    state = load_state(tmp_path)
    assert state["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert state["row"].tolist() == [0, 1, 2]


def test_files_are_safetensors_and_json(tmp_path: Path) -> None:
    StateCopy.copy({"a": torch.ones(2), "b": {"c": [1, 2.5, None]}}).write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [STRUCTURE, TENSORS]
    json.loads((tmp_path / STRUCTURE).read_text())
    with safe_open(tmp_path / TENSORS, "pt") as file:
        assert len(list(file.keys())) == 1


@pytest.mark.parametrize("name", [STRUCTURE, TENSORS])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
def test_damaged_state_raises_value_error(tmp_path: Path, name: str, damage: str) -> None:
    StateCopy.copy({"a": torch.ones(100), "b": 1}).write(tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    match damage:
        case "missing":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "other":
            file.write_bytes(b"[1, 2]")
    with pytest.raises(ValueError, match="holds no readable training state"):
        load_state(tmp_path)


def test_random_state_is_restored() -> None:
    device = torch.device("cpu")
    state = random_state(device)
    drawn = torch.rand(3)
    torch.rand(100)
    restore_random_state(state, device)
    assert torch.equal(torch.rand(3), drawn)
