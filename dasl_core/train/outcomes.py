"""Outcomes of steps, which the host reads with a delay, and divergence: too many without finite gradients."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from dasl_core.tensors import HostCopy
from dasl_core.train.run import Run

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
        # Step, indices, updated and overflowed.
        self._pending: deque[tuple[int, Tensor, HostCopy | bool, bool]] = deque()

    def record(
        self, step: int, indices: Tensor, updated: Tensor | bool, *, overflowed: bool
    ) -> None:
        """Record a step; arguments as for `Outcome`, but `updated` may be a tensor () bool still in computation."""
        copy = HostCopy(updated) if isinstance(updated, Tensor) else updated
        self._pending.append((step, indices, copy, overflowed))

    def take_due(self, *, wait: bool) -> Iterator[Outcome]:
        """Yield the due outcomes, with `wait` also those in flight, oldest first, once the device has computed them."""
        while len(self._pending) > (0 if wait else self.in_flight):
            step, indices, updated, overflowed = self._pending.popleft()
            is_updated = bool(updated.read()) if isinstance(updated, HostCopy) else updated
            yield Outcome(step, indices, is_updated, overflowed, len(self._pending))


class DivergedError(ValueError):
    """The loss or the weights are no longer finite; a retry would fail in the same way."""


class DivergenceGuard:
    """Counts skipped steps, and fails the run after too many, once `flush` has reported the last metrics."""

    def __init__(self, run: Run, *, flush: Callable[[], object]) -> None:
        self.run, self.flush = run, flush

    def count(self, outcome: Outcome) -> None:
        """Count a step, and report a skipped one; a DivergedError after more than `train.skip_not_finite` in a row."""
        progress = self.run.progress
        if outcome.overflowed:
            progress.overflowed += 1
            return
        if outcome.updated:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        paths = self.run.data.index.paths
        names = [paths[index] for index in outcome.indices.tolist()]
        self.run.reporter.event(
            "step_skipped",
            f"step {outcome.step} was skipped: its gradients are not finite",
            {"step": outcome.step, "skipped": progress.skipped, "images": names[:100]},
        )
        if progress.skipped_in_a_row > self.run.spec.train.skip_not_finite:
            self.flush()
            few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise self.error(
                f"the gradients of {progress.skipped_in_a_row} steps in a row are not finite, the "
                f"last one's at step {outcome.step}, with the images {few}"
            )

    def check_updated(self, total_steps: int) -> None:
        """Raise a DivergedError if all steps of the run were skipped: no weight was ever updated."""
        progress = self.run.progress
        if progress.skipped + progress.overflowed < total_steps:
            return
        if progress.overflowed:
            raise DivergedError(
                f"no loss scale of float16 was found in {total_steps} steps, so none of them "
                "changed a weight; train for more steps, or with train.precision bf16"
            )
        raise self.error(f"none of the {total_steps} steps had finite gradients")

    def error(self, problem: str) -> DivergedError:
        """The error for a problem, with advice."""
        lr = self.run.spec.train.optimizer.lr
        return DivergedError(f"{problem}; try a lower train.optimizer.lr than {lr} or more warm-up")
