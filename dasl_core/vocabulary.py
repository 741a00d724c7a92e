"""Words that a run, its workers, the service and its clients share.

A module of its own, because importing a package such as `dasl_core.spec` would slow down every command.
"""

from typing import Literal

Desired = Literal["run", "pause", "cancel"]
"""What a person wants of a job."""

Outcome = Literal["succeeded", "failed", "cancelled", "paused"]
"""How a run ended, as its worker reports it."""

TrainingOutcome = Literal["succeeded", "cancelled", "paused"]
"""How a training ends that raises no error."""

Phase = Literal["reading", "baselines", "training", "final"]
"""Part of a training that may take long."""

Subject = Literal["raw", "untrained", "backbone"]
"""What an evaluation measures: the pixels, and the backbone before and after training."""
