"""Outcomes of the last steps, which the host reads with a delay."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Steps that the host may be ahead of a GPU: enough that the GPU never waits, with the views of few steps in
# its memory.
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Outcome:
    """Outcome of a step.

    Attributes:
        step: number of steps, this one included.
        updated: whether it changed the weights.
        overflowed: whether it was skipped because the loss scale is still too large for float16.
        indices: (N,) indices of the images of its global batch.
        age: number of later steps that were recorded before this outcome was read.
    """

    step: int
    indices: Tensor
    updated: bool
    overflowed: bool
    age: int


class Outcomes:
    """The outcomes of steps, in order, each after a fixed number of further steps.

    The number is fixed because all ranks must react to a skipped step at the same time.

    Args:
        in_flight: number of newest steps whose outcomes are not due yet.
    """

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight
        # Step, indices, updated, overflowed, and when `updated` is computed.
        self._pending: deque[tuple[int, Tensor, Tensor | bool, bool, torch.cuda.Event | None]]
        self._pending = deque()

    def record(
        self, step: int, indices: Tensor, updated: Tensor | bool, *, overflowed: bool
    ) -> None:
        """Record a step; arguments as for `Outcome`.

        Args:
            updated: may be a tensor () bool that a GPU still computes.
        """
        computed = None
        if isinstance(updated, Tensor) and updated.is_cuda:
            with torch.cuda.device(updated.device):
                updated = updated.to("cpu", non_blocking=True)
                computed = torch.cuda.current_stream().record_event()
        self._pending.append((step, indices, updated, overflowed, computed))

    def take_due(self, *, wait: bool) -> Iterator[Outcome]:
        """Yield the outcomes that are due, oldest first; waits until the device has computed them.

        Args:
            wait: whether the steps in flight are due, too.
        """
        while len(self._pending) > (0 if wait else self.in_flight):
            step, indices, updated, overflowed, computed = self._pending.popleft()
            if computed is not None:
                computed.synchronize()
            yield Outcome(step, indices, bool(updated), overflowed, len(self._pending))
