"""Schedules of the weight of a regularizer."""

import math
from typing import Literal, get_args

from dasl_core.tensors import check_choice

Schedule = Literal["constant", "linear", "cosine"]


def weight_at(weight: float, schedule: Schedule, progress: float) -> float:
    """Compute the weight of a step from the progress, so that a resumed run needs no state.

    Args:
        weight: weight at the end of the training, or always if constant; at least 0.
        schedule: ``"constant"``; ``"linear"`` from 0 to `weight`, as SEC's authors do
            for contrastive losses; ``"cosine"`` from 0 to `weight` along half a cosine,
            ``weight (1 - cos(pi progress)) / 2``, which starts and ends gently.
        progress: from 0 at the first step to 1 at the last.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    if not 0.0 <= weight < math.inf:
        raise ValueError(f"weight must be a finite number of at least 0; given {weight!r}")
    check_choice("schedule", schedule, get_args(Schedule))
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must be a number from 0 to 1; given {progress!r}")
    if schedule == "constant":
        return weight
    if schedule == "linear":
        return weight * progress
    return weight * (1 - math.cos(math.pi * progress)) / 2
