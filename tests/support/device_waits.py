"""Finds operations at which the host would wait for a GPU, on a CPU."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).parents[2] / "dasl_core"
# Operators whose result the host must read, which check it on the host, or whose shape depends on values.
READING = {
    "aten::_local_scalar_dense",
    "aten::_linalg_eigh",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
INDEXING = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Methods of tensors that read them without an operator on a CPU.
READERS = {Tensor.tolist, Tensor.numpy, Tensor.cpu}


class DeviceWaits:
    """Context that collects, in `found`, where the host reads what would be on a GPU.

    On the device are the tensors given at first, what `Tensor.to` copies to a device, and all that is computed
    from those. Everything else, such as the labels and the masks of a batch, is the host's.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.found: list[str] = []
        # By the address of their storage, and kept, so that no address is used again.
        self._on_device: dict[int, Tensor] = {}
        self.add(tensors)
        self._modes = (_Operators(self), _Methods(self))

    def __enter__(self) -> DeviceWaits:
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def add(self, values: Any) -> None:
        """Note that tensors, nested in any way, are on the device."""
        for value in tree_leaves(list(values)):
            if isinstance(value, Tensor):
                self._on_device[value.untyped_storage()._cdata] = value

    def any_of(self, values: Any) -> bool:
        """Whether any tensor among nested values is on the device."""
        return any(
            isinstance(value, Tensor) and value.untyped_storage()._cdata in self._on_device
            for value in tree_leaves(values)
        )

    def wait(self, name: str) -> None:
        """Note a wait, with the line of our code that causes it."""
        lines = [
            f"{Path(frame.filename).relative_to(PACKAGE)}:{frame.name}"
            for frame in traceback.extract_stack()
            if Path(frame.filename).is_relative_to(PACKAGE)
        ]
        self.found.append(f"{name} in {lines[-1] if lines else 'other code'}")


class _Operators(TorchDispatchMode):
    def __init__(self, waits: DeviceWaits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        on_device = self._waits.any_of((args, kwargs))
        if on_device:
            name = func._schema.name
            overload = f"{name}.{func._schema.overload_name}"
            if name in READING or overload in READING or _counts_mask(name, overload, args):
                self._waits.wait(name)
        result = func(*args, **kwargs)
        if on_device:
            self._waits.add([result, _written(func, args)])
        return result


class _Methods(TorchFunctionMode):
    def __init__(self, waits: DeviceWaits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func is Tensor.to:
            return self._copied(args, kwargs)
        if func in READERS and self._waits.any_of(args):
            self._waits.wait(func.__name__)
        return func(*args, **kwargs)

    def _copied(self, args: Any, kwargs: Any) -> object:
        """Copy also where a CPU would not, so that the host's tensor stays the host's."""
        value: Tensor = Tensor.to(*args, **kwargs)
        targets = [*args[1:], *kwargs.values()]
        to_host = "cpu" in [target for target in targets if isinstance(target, str)]
        if to_host and self._waits.any_of(args[0]):
            self._waits.wait("to cpu")
        elif any(isinstance(target, torch.device) for target in targets):
            if not self._waits.any_of(args[0]) and not _is_pinned():
                self._waits.wait("copy that is not of pinned memory")
            value = value.clone() if value is args[0] else value
            self._waits.add([value])
        return value


def _is_pinned() -> bool:
    """Whether the copy in the making is that of `to_device`, from pinned memory."""
    return any(
        frame.name == "to_device" and Path(frame.filename) == PACKAGE / "tensors.py"
        for frame in traceback.extract_stack()
    )


def _written(func: Any, args: Any) -> list[Any]:
    """Return the arguments that an operator changes; those on many tensors at once do not return them."""
    arguments = zip(func._schema.arguments, args, strict=False)
    return [value for each, value in arguments if each.alias_info and each.alias_info.is_write]


def _counts_mask(name: str, overload: str, args: Any) -> bool:
    """Whether an operator indexes with a mask, whose trues must be counted."""
    if not {name, overload} & INDEXING:
        return False
    return any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
