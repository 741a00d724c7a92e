"""Build and call networks for their shapes alone, without memory for weights and without their values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Functions whose result has the shape of their first argument, whatever the others are; on the meta device
# they take most of the time of a build and of a call.
SAME_SHAPE = {
    F.batch_norm,
    F.gelu,
    F.layer_norm,
    Tensor.clamp_,
    Tensor.erfinv_,
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.constant_,
    nn.init.kaiming_uniform_,
    nn.init.normal_,
    nn.init.uniform_,
}


@contextmanager
def shapes_only() -> Iterator[None]:
    """Create tensors without values, and skip functions that change no shape."""
    with torch.device("meta"), _SkipSameShape():
        yield


class _SkipSameShape(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in SAME_SHAPE:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
