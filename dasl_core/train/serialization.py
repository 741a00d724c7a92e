"""Serialization of nested state without pickle: tensors in safetensors, everything else in JSON.

Floats are preserved exactly: JSON holds their shortest round-trip form.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from dasl_core.distributed import whole_tensor

TENSORS, STRUCTURE = "training_state.safetensors", "training_state.json"
STATE_FILES = frozenset({TENSORS, STRUCTURE})
"""Files of a checkpoint needed to resume."""
_TENSOR, _PAIRS = "__tensor__", "__pairs__"


@dataclass(frozen=True)
class StateCopy:
    """A deep copy of nested state in CPU memory."""

    structure: Any
    tensors: dict[str, Tensor]

    @classmethod
    def copy(cls, state: dict[str, Any]) -> Self:
        """Copy nested dicts, lists, numbers, strings and tensors, which are gathered if FSDP has sharded them."""
        tensors: dict[str, Tensor] = {}
        return cls(_take_tensors(state, "", tensors), tensors)

    @property
    def size(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, folder: Path) -> None:
        """Write the two files of the state to `folder`."""
        save_file(self.tensors, folder / TENSORS)
        (folder / STRUCTURE).write_text(json.dumps(self.structure), encoding="utf-8")


def load_state(folder: Path) -> dict[str, Any]:
    """Read the files of `StateCopy.write`; tensors are on the CPU. A ValueError if a file is missing or damaged."""
    try:
        structure = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
        state: dict[str, Any] = dict(_put_tensors(structure, tensors))
    except Exception as error:  # safetensors raises its own error type
        raise ValueError(f"{folder} holds no readable training state: {error}") from error
    return state


def _take_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # Numbered, because keys may contain slashes. Copied, because safetensors refuses shared memory.
        name = f"{len(tensors)}{path}"
        tensors[name] = whole_tensor(value.detach()).to("cpu", copy=True).contiguous()
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
