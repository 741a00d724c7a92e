"""The position of a run: counters and records of its steps."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Position and history of a run. Saved with every checkpoint."""

    step: int = 0
    branched_at: int = 0  # the step of another run's checkpoint that this run started from
    # Mean loss of each finished epoch; None where no step of it had a finite loss.
    losses: list[float | None] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    epoch_loss_sum: float = 0.0  # of the current epoch
    epoch_loss_steps: int = 0
    skipped: int = 0  # steps skipped because their gradients were not finite
    skipped_in_a_row: int = 0
    overflowed: int = 0  # steps skipped in the search for float16's loss scale
    collapse: dict[str, Any] = field(default_factory=dict)  # state of the collapse alarm
    collapsed: str | None = None  # why the run must end
    ended: bool = False  # the final evaluation is done, too
    verdict: dict[str, Any] | None = None  # of `dasl_core.verdict`, once ended

    def close_epoch(self) -> None:
        """Record the mean loss of the epoch and start the next one."""
        steps = self.epoch_loss_steps
        self.losses.append(self.epoch_loss_sum / steps if steps else None)
        self.epoch_loss_sum, self.epoch_loss_steps = 0.0, 0


@dataclass(frozen=True)
class RunLength:
    """How many steps a run takes, and of how many images.

    Attributes:
        batch_size: global.
    """

    epochs: int
    steps_per_epoch: int
    batch_size: int

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def epoch_at(self, step: int) -> float:
        """Epochs done after `step` steps, with a fraction."""
        return step / self.steps_per_epoch
