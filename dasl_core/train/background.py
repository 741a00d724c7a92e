"""Background work during training: a call in a thread, and copies of modules."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from torch import nn

T = TypeVar("T")


def run_in_background(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread of its own, for which the process does not wait when it exits."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def copy_to_cpu(module: nn.Module) -> nn.Module:
    """Copy a module to the CPU without a second copy of its weights on its own device."""
    copies: dict[int, object] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        on_cpu = tensor.detach().to("cpu", copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(on_cpu, requires_grad=False) if is_parameter else on_cpu
    return copy.deepcopy(module, copies)
