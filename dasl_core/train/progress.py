"""Progress of a run: counters and records of its steps."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Step metrics whose epoch means are drawn, in addition to every `loss_...`.
DRAWN = ("embedding_norm", "embedding_norm_std", "embedding_rank")
# Drawn, but not saved, so that a resumed run saves the same bits as an uninterrupted one.
TIMED = ("images_per_second", "time_data_wait")


@dataclass
class Progress:
    """Position and history of a run. Saved with every checkpoint, except for timing metrics."""

    step: int = 0
    branched_at: int = 0  # step of the other run's checkpoint at which this branch started
    # Mean loss of each finished epoch; None if no step had a finite loss.
    losses: list[float | None] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    # Of each of these: step, subject, and which images are right by accuracy (`dasl_core.hits`).
    hits: list[dict[str, Any]] = field(default_factory=list)
    epoch_loss_sum: float = 0.0  # of the current epoch
    epoch_loss_steps: int = 0
    # Means of the drawn metrics of each finished epoch, and [sum, steps] of the current one.
    epochs: list[dict[str, float]] = field(default_factory=list)
    epoch_sums: dict[str, list[float]] = field(default_factory=dict)
    # Same for timing metrics since process start; not saved.
    timed_epochs: list[dict[str, float]] = field(default_factory=list)
    timed_sums: dict[str, list[float]] = field(default_factory=dict)
    skipped: int = 0  # steps skipped because their gradients were not finite
    skipped_in_a_row: int = 0
    overflowed: int = 0  # steps skipped in the search for float16's loss scale
    collapse: dict[str, Any] = field(default_factory=dict)  # state of the collapse alarm
    collapsed: str | None = None  # why the run must end
    ended: bool = False  # the final evaluation is done, too
    verdict: dict[str, Any] | None = None  # from `dasl_core.verdict`, after the end
    # Evidence (`dasl_core.train.certificate`): digest of the terms of the loss in all steps, losses of the steps since
    # the last entry of the chain, its entries, and what the bits depend on, on rank 0.
    terms: str = ""
    recent_losses: list[float] = field(default_factory=list)
    chain: list[dict[str, Any]] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, environment: dict[str, Any]) -> None:
        """Record the environment of the next steps, if it is another one."""
        here = {"step": self.step, **environment}
        self.environments = [e for e in self.environments if e["step"] < self.step] or [here]
        if self.environments[-1] | {"step": self.step} != here:
            self.environments.append(here)

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a step to the means of the epoch."""
        loss = metrics["loss"]
        self.recent_losses.append(loss)
        terms = {name: value for name, value in metrics.items() if name.startswith("loss")}
        self.terms = digest_of(self.terms, terms)
        if math.isfinite(loss):
            self.epoch_loss_sum += loss
            self.epoch_loss_steps += 1
        for name, value in metrics.items():
            is_drawn = name in DRAWN or name.startswith("loss_")
            if (is_drawn or name in TIMED) and math.isfinite(value):
                sums = self.epoch_sums if is_drawn else self.timed_sums
                total = sums.setdefault(name, [0.0, 0])
                total[0] += value
                total[1] += 1

    def add_entry(self, weights: str) -> None:
        """Add an entry with the weights' SHA-256, "" on ranks other than 0, to the chain, and start the next."""
        losses, self.recent_losses = self.recent_losses, []
        entry = {
            "step": self.step,
            "terms": self.terms,
            # NaN is no JSON.
            "first_loss": losses[0] if losses and math.isfinite(losses[0]) else None,
            "mean_loss": math.fsum(losses) / len(losses)
            if all(map(math.isfinite, losses))
            else None,
            "weights": weights,
        }
        before = self.chain[-1]["link"] if self.chain else ""
        self.chain.append(entry | {"link": digest_of(before, entry)})

    def close_epoch(self) -> None:
        """Record the means of the epoch and start the next one."""
        self.epochs.append(_means(self.epoch_sums))
        self.timed_epochs.append(_means(self.timed_sums))
        self.epoch_sums, self.timed_sums = {}, {}
        steps = self.epoch_loss_steps
        self.losses.append(self.epoch_loss_sum / steps if steps else None)
        self.epoch_loss_sum, self.epoch_loss_steps = 0.0, 0

    def saved(self) -> dict[str, Any]:
        """Return the fields to save."""
        return {k: v for k, v in vars(self).items() if k not in ("timed_epochs", "timed_sums")}

    def drawn_epochs(self) -> list[dict[str, float]]:
        """Return the means of all drawn metrics of each finished epoch."""
        earlier: list[dict[str, float]] = [{}] * (len(self.epochs) - len(self.timed_epochs))
        timed = [*earlier, *self.timed_epochs]
        return [means | times for means, times in zip(self.epochs, timed, strict=True)]


def digest_of(before: str, content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the digest before and of what JSON can hold exactly."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


def _means(sums: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: total / steps for name, (total, steps) in sums.items()}


@dataclass(frozen=True)
class RunLength:
    """Length of a run in steps and images, by its global batch size."""

    epochs: int
    steps_per_epoch: int
    batch_size: int

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def epoch_at(self, step: int) -> float:
        """Return the epochs done after `step` steps, with a fraction."""
        return step / self.steps_per_epoch
