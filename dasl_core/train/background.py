"""Background work during training: a call in a thread, and copies of modules."""

import copy
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import nn

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A function that runs in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """Exception of the function; None while it runs. Never waits."""
        return self._error

    @property
    def has_returned(self) -> bool:
        """Whether `result` would return at once. Never waits."""
        return bool(self._results)

    def result(self) -> T:
        """Wait for the function and return its result.

        Raises:
            Exception: the exception of the function.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._error = error


def copy_to_cpu(module: nn.Module) -> nn.Module:
    """Copy a module to the CPU without a second copy of its weights on its own device."""
    copies: dict[int, object] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        on_cpu = tensor.detach().to("cpu", copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(on_cpu, requires_grad=False) if is_parameter else on_cpu
    return copy.deepcopy(module, copies)
