"""Detection of a representation that collapses during training, and of the cause.

Pure Python on reported metrics. It reads these metrics if present:

* ``embedding_std`` with ``embedding_dim``: standard deviation of a coordinate of the L2-normalized
  embeddings, mean over coordinates; all methods.
* ``embedding_norm``: mean norm of the raw embeddings; all methods.
* ``num_outputs`` (K), for methods that assign each image to K outputs (DINO, SwAV), with
  ``output_entropy``: mean over images of the entropy of their targets, in nats, from 0 to ln K; and
  ``output_usage``: entropy of the mean of the batch's targets: near ln K when all outputs are used,
  near 0 when all images get one. Without these two, ``loss_dino`` or ``loss_swav`` is used.
* ``effective_rank`` with ``embedding_dim`` of the same vectors; ``num_classes`` for supervised methods.

Each metric is good, bad or between. An alarm is raised once after several bad reports in a row, and reset by
as many good ones. Most networks look collapsed at the start, so an alarm is armed only after its metric was
good, or after a tenth of the training.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Cause = Literal["uniform_output", "constant_output", "dimensional_collapse", "norm_explosion"]
Verdict = Literal["good", "between", "bad"]
Judged = tuple[Verdict | None, dict[str, float]]
"""A verdict, None if its metrics are missing, and the metrics that show it."""

# Grace period for a metric that was never good, as a share of the training.
GRACE = 0.1

# Bad reports in a row until an alarm. Step metrics are reported every ten steps; effective ranks only
# with the few evaluations.
PATIENCE: dict[Cause, int] = {
    "uniform_output": 5,
    "constant_output": 5,
    "dimensional_collapse": 2,
    "norm_explosion": 5,
}

# Share of ln K. Runs reported as collapsed stay within a thousandth of it (DINO 11.0902 of 11.0904, issue 246
# of its repository; SwAV 6.2384 of 6.2383, lightly's issue 736, and "stuck at ln(nmb_prototypes)" in
# SwAV's README), while a slow run that did learn was at 0.987 after a tenth of its training (SwAV with
# 21 prototypes, its issue 120).
UNIFORM_BAD, UNIFORM_GOOD = 0.995, 0.98

# Share of ln K. Below 0.1, all images together use as many outputs as K^0.1: 3 of 65,536.
USAGE_BAD, USAGE_GOOD = 0.1, 0.2

# Share of ln K, for a loss where the usage is unknown: a cross-entropy near 0 means certain targets that are
# always met. Clear clusters look the same, so a low loss alone raises the alarm only if embedding spread is
# unavailable or not healthy.
LOSS_BAD, LOSS_GOOD = 0.02, 0.05

# Share of 1/sqrt(d), the value of evenly spread directions. Its square is at most 1 - the mean
# cosine of two images' embeddings: 0.1 is a mean cosine of 0.99, 0.2 one of 0.96.
SPREAD_BAD, SPREAD_GOOD = 0.1, 0.2

# A quarter of the best effective rank so far and a tenth of the dimensions, so that a fluctuation raises no alarm.
# Below 3 dimensions (of at least 12) half is enough. A low rank alone is not a collapse: RankMe does not center,
# and the non-negative features of an untrained ResNet often have a rank of 1 to 3.
RANK_OF_BEST, RANK_OF_DIMENSIONS, FEW_DIMENSIONS = 0.25, 0.1, 3.0

# A head whose last layer starts near 0 grows by two to three orders of magnitude while it learns; two
# more after the grace period, or four in all, mean that the optimizer runs away (a cosine loss turns an
# embedding by 1/norm^2 a step, so it has stopped learning; float16 ends at 65,504).
NORM_GROWTH, NORM_GROWTH_IN_ALL = 1e2, 1e4


@dataclass(frozen=True)
class Alarm:
    """A collapse: its cause, a message to users, and the metrics that show it."""

    cause: Cause
    message: str
    metrics: dict[str, float]


class CollapsedError(ValueError):
    """The representation has collapsed, and `train.collapse` is "stop"."""


@dataclass
class _Watch:
    """State of one cause."""

    armed: bool = False
    raised: bool = False
    bad_in_a_row: int = 0
    good_in_a_row: int = 0


class CollapseAlarm:
    """Checks the metrics of each report for collapse."""

    def __init__(self) -> None:
        self._watches: dict[Cause, _Watch] = {cause: _Watch() for cause in get_args(Cause)}
        self._best_rank = 0.0
        self._first_norm = 0.0  # 0: unknown
        self._early_norm = 0.0  # largest in the grace period

    @property
    def active(self) -> list[Cause]:
        """Causes with an active alarm."""
        return [cause for cause, watch in self._watches.items() if watch.raised]

    def observe(self, metrics: Mapping[str, float], progress: float) -> list[Alarm]:
        """Check a report.

        Args:
            metrics: metrics by the names above; missing, NaN and other ones are ignored.
            progress: completed share of the training, from 0 to 1.

        Returns:
            An alarm for each cause confirmed by this report.
        """
        finite = {name: float(value) for name, value in metrics.items() if not math.isnan(value)}
        verdicts = {
            "norm_explosion": self._norm(finite, progress),
            "uniform_output": self._uniform(finite),
            "constant_output": self._constant(finite),
            "dimensional_collapse": self._rank(finite),
        }
        alarms = []
        for cause in get_args(Cause):
            verdict, evidence = verdicts[cause]
            if self._confirmed(cause, verdict, progress):
                alarms.append(Alarm(cause, _message(cause, evidence), evidence))
        return alarms

    def state_dict(self) -> dict[str, Any]:
        """Return the state, JSON-ready."""
        return {
            "watches": {cause: asdict(watch) for cause, watch in self._watches.items()},
            "best_rank": self._best_rank,
            "first_norm": self._first_norm,
            "early_norm": self._early_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._watches = {cause: _Watch(**state["watches"][cause]) for cause in get_args(Cause)}
        self._best_rank = float(state["best_rank"])
        self._first_norm = float(state["first_norm"])
        self._early_norm = float(state["early_norm"])

    def _confirmed(self, cause: Cause, verdict: Verdict | None, progress: float) -> bool:
        """Count a verdict; return whether to raise the alarm."""
        watch, patience = self._watches[cause], PATIENCE[cause]
        if verdict is None:
            return False
        watch.armed = watch.armed or verdict == "good" or progress >= GRACE
        watch.bad_in_a_row = watch.bad_in_a_row + 1 if verdict == "bad" and watch.armed else 0
        watch.good_in_a_row = watch.good_in_a_row + 1 if verdict == "good" else 0
        if watch.raised:
            watch.raised = watch.good_in_a_row < patience
            return False
        if cause == "dimensional_collapse" and self._watches["constant_output"].bad_in_a_row:
            return False  # a complete collapse is reported instead
        watch.raised = watch.bad_in_a_row >= patience
        return watch.raised

    def _uniform(self, metrics: Mapping[str, float]) -> Judged:
        most = _most_entropy(metrics)
        name = _first(metrics, "output_entropy", "loss_dino", "loss_swav")
        if most is None or name is None:
            return None, {}
        evidence = {name: metrics[name], "ln_outputs": most}
        return _judge(
            metrics[name], good_below=UNIFORM_GOOD * most, bad_above=UNIFORM_BAD * most
        ), evidence

    def _constant(self, metrics: Mapping[str, float]) -> Judged:
        evidence: dict[str, float] = {}
        verdicts: list[Verdict] = []
        spread = _spread(metrics)
        if spread is not None:
            evidence |= {"embedding_std": metrics["embedding_std"], "share_of_even_spread": spread}
            verdicts.append(_judge(-spread, good_below=-SPREAD_GOOD, bad_above=-SPREAD_BAD))
        most = _most_entropy(metrics)
        name = _first(metrics, "output_usage", "loss_dino", "loss_swav")
        if most is not None and name is not None:
            good, bad = (USAGE_GOOD, USAGE_BAD) if name == "output_usage" else (LOSS_GOOD, LOSS_BAD)
            verdict = _judge(-metrics[name], good_below=-good * most, bad_above=-bad * most)
            if verdict == "bad" and name != "output_usage" and verdicts == ["good"]:
                verdict = "between"
            evidence |= {name: metrics[name], "ln_outputs": most}
            verdicts.append(verdict)
        if not verdicts:
            return None, {}
        if "bad" in verdicts:
            return "bad", evidence
        return ("between" if "between" in verdicts else "good"), evidence

    def _rank(self, metrics: Mapping[str, float]) -> Judged:
        if "effective_rank" not in metrics or "embedding_dim" not in metrics:
            return None, {}
        rank, dimensions = metrics["effective_rank"], metrics["embedding_dim"]
        self._best_rank = best = max(self._best_rank, rank)
        evidence = {"effective_rank": rank, "embedding_dim": dimensions, "best_so_far": best}
        # Supervised methods aim at one point per class, which spans at most this many dimensions.
        if "num_classes" in metrics and rank >= (metrics["num_classes"] - 1) / 2:
            return "good", evidence
        few = min(FEW_DIMENSIONS, dimensions / 4, best / 2)
        limit = max(few, min(RANK_OF_BEST * best, RANK_OF_DIMENSIONS * dimensions))
        return _judge(-rank, good_below=-2 * limit, bad_above=-limit), evidence

    def _norm(self, metrics: Mapping[str, float], progress: float) -> Judged:
        if "embedding_norm" not in metrics:
            return None, {}
        norm = min(metrics["embedding_norm"], sys.float_info.max)  # JSON has no infinity
        self._first_norm = self._first_norm or norm
        if self._first_norm == 0:
            return None, {}
        limit = min(NORM_GROWTH_IN_ALL * self._first_norm, sys.float_info.max / 10)
        if progress < GRACE or self._early_norm == 0:
            self._early_norm = max(self._early_norm, min(norm, limit))
        else:
            limit = min(limit, NORM_GROWTH * self._early_norm)
        evidence = {"embedding_norm": norm, "embedding_norm_at_start": self._first_norm}
        return _judge(norm, good_below=limit / 10, bad_above=limit), evidence


def _judge(value: float, *, good_below: float, bad_above: float) -> Verdict:
    if value > bad_above:
        return "bad"
    return "good" if value < good_below else "between"


def _first(metrics: Mapping[str, float], *names: str) -> str | None:
    return next((name for name in names if name in metrics), None)


def _most_entropy(metrics: Mapping[str, float]) -> float | None:
    outputs = metrics.get("num_outputs", 0.0)
    return math.log(outputs) if outputs > 1 else None


def _spread(metrics: Mapping[str, float]) -> float | None:
    if "embedding_std" not in metrics or "embedding_dim" not in metrics:
        return None
    return metrics["embedding_std"] * math.sqrt(metrics["embedding_dim"])


def _message(cause: Cause, evidence: Mapping[str, float]) -> str:
    """Describe the problem, its metrics, and advice."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())
    return f"{_PROBLEM[cause]} ({metrics}). {_ADVICE[cause]}"


_PROBLEM: dict[Cause, str] = {
    "uniform_output": "The outputs are uniform: every image is assigned to all outputs equally, so "
    "the network does not learn to distinguish images",
    "constant_output": "All images get nearly the same output: the representation has collapsed to a "
    "point",
    "dimensional_collapse": "The representation has collapsed to few dimensions: most of its width "
    "carries no information",
    "norm_explosion": "The norms of the embeddings grow by orders of magnitude: steps hardly turn "
    "them any more, and half precision overflows",
}

_ADVICE: dict[Cause, str] = {
    "uniform_output": "Try sharper targets (a lower teacher temperature or epsilon), a lower learning "
    "rate, or a last layer that stays frozen for longer.",
    "constant_output": "Try a lower dar.weight if DAR is on (with dar.difference: distance it is milder), "
    "softer or better centered targets (a higher teacher temperature, a faster center) if the method has them, "
    "and a lower learning rate.",
    "dimensional_collapse": "Try a lower dar.weight if DAR is on (with dar.difference: distance it is "
    "milder), less weight decay, more varied views, or a larger batch.",
    "norm_explosion": "Try a lower learning rate or a longer warm-up, some weight decay, or SEC "
    "(sec.weight), which keeps the norms close to each other.",
}
