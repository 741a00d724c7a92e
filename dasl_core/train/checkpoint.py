"""Training state on disk, without pickle: tensors in safetensors, all else in JSON.

Floats survive exactly: JSON carries their shortest round-trip form.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TENSORS, STRUCTURE = "training_state.safetensors", "training_state.json"
_TENSOR, _PAIRS = "__tensor__", "__pairs__"


def save_state(state: dict[str, Any], folder: Path) -> None:
    """Write nested dicts, lists, numbers, strings and tensors to two files in `folder`."""
    tensors: dict[str, Tensor] = {}
    structure = _take_tensors(state, "", tensors)
    save_file(tensors, folder / TENSORS)
    (folder / STRUCTURE).write_text(json.dumps(structure), encoding="utf-8")


def load_state(folder: Path) -> dict[str, Any]:
    """Read what `save_state` wrote; tensors come back on the CPU.

    Raises:
        ValueError: a file is missing or damaged.
    """
    try:
        structure = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
        state: dict[str, Any] = dict(_put_tensors(structure, tensors))
    except Exception as error:  # safetensors raises a type of its own that is no ValueError
        raise ValueError(f"{folder} holds no readable training state: {error}") from error
    return state


def _take_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # Numbered, since keys may hold slashes. Clones: safetensors refuses tensors that share
        # memory, and a name each is simple.
        name = f"{len(tensors)}{path}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not value.keys() & {_TENSOR, _PAIRS}:
            return {k: _take_tensors(v, f"{path}/{k}", tensors) for k, v in value.items()}
        # JSON would turn an optimizer's integer keys into strings.
        return {_PAIRS: [[k, _take_tensors(v, f"{path}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    assert value is None or isinstance(value, bool | int | float | str), type(value)
    return value


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if value.keys() == {_PAIRS}:
        return {key: _put_tensors(item, tensors) for key, item in value[_PAIRS]}
    return {key: _put_tensors(item, tensors) for key, item in value.items()}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of this process's global generators (what dropout draws from)."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Undo all drawing since `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
