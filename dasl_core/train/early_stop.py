"""Early stopping when evaluations no longer improve."""

from collections.abc import Mapping, Sequence
from typing import Any

from dasl_core.headlines import score
from dasl_core.spec import Stop


def early_stop(
    stop: Stop, evaluations: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, Any]] | None:
    """Decide whether to stop the training; return message and data of the event, or None to continue.

    A pure function of the evaluations, which checkpoints contain, so a resumed run decides the same.

    Args:
        evaluations: records with step, epoch and metrics of the `evaluate.on` network, oldest first.

    Raises:
        ValueError: an evaluation lacks the metric.
    """
    best: int | None = None
    scores = [stop_score(stop, evaluation["metrics"]) for evaluation in evaluations]
    for i, value in enumerate(scores):
        if best is None or value > scores[best] + stop.min_delta:
            best = i
    if best is None or len(scores) - 1 - best < stop.patience:
        return None
    name, values = stop.metric, [evaluation["metrics"][stop.metric] for evaluation in evaluations]
    epoch, newest = evaluations[best]["epoch"], evaluations[-1]
    by = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
    message = (
        f"The training ends at epoch {newest['epoch']:g}: {name} was {values[best]:.4g} at epoch {epoch:g}, and "
        f"{len(scores) - 1 - best} evaluations have not improved it{by} (train.stop)"
    )
    data = {"metric": name, "best": values[best], "best_epoch": epoch, "newest": values[-1]}
    return message, data


def stop_score(stop: Stop, metrics: Mapping[str, Any]) -> float:
    """Return the metric for early stopping, signed such that larger is better; a ValueError if it is missing."""
    value = score(metrics, stop.metric)
    if value is None:
        measured = ", ".join(name for name in metrics if score(metrics, name) is not None)
        raise ValueError(
            f"train.stop.metric: the evaluations of this run do not measure {stop.metric}; one of {measured}"
        )
    return value
