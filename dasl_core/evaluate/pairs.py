"""Verification: whether two images are of one class, decided by a threshold on their cosine similarity."""

import random

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors

FOLDS = 10
# With 30 independent errors, a rate is within 30 % of the true one with 90 % confidence (Doddington et al., "The NIST
# speaker recognition evaluation", Speech Communication 2000).
FALSE_ACCEPTS = 30
# Pairs of different classes for each one that is accepted.
ONE_IN = (100, 1000)
# Of each of some ten arrays at a time: 4 MiB.
_ENTRIES = 1 << 19


@torch.no_grad()
def verification(
    x: Tensor | np.ndarray, y: Tensor | np.ndarray, *, pairs: int = 60_000
) -> dict[str, float]:
    """Accuracy of verification over ten folds, and TAR at FAR.

    Half of the pairs are of one class, half of two, each drawn without repetition and equally likely among all of its
    kind; of few images there are fewer. As with LFW (Huang et al. 2007), the threshold of a fold is the best one for
    the other nine. Unlike there, folds have no pair in common, but images and classes: held-out classes can be few.

    Args:
        x: (N, d) features.
        y: (N,) integer classes.
        pairs: maximum of pairs of both kinds together.

    Returns:
        ``verification_accuracy`` and ``verification_accuracy_std``, mean and standard deviation over the folds; and
        ``tar_at_far_0.01`` and ``tar_at_far_0.001``, each if that share of the pairs of two classes is at least 30:
        the largest share of the pairs of one class that a threshold accepts which accepts at most that share of the
        others. Empty if there are fewer than ten pairs of a kind.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    x = tensors.feature_matrix(x, "x")
    y = tensors.label_vector(y, "y", len(x), x.device)
    tensors.check_whole_number(pairs, "pairs")
    if pairs < 2 * FOLDS:
        raise ValueError(f"pairs must be at least {2 * FOLDS}; given {pairs}")
    sorted_y, order = torch.sort(y, stable=True)
    classes, at = sorted_y.cpu().numpy(), np.arange(len(x))
    ends = np.searchsorted(classes, classes, side="right")
    # The partners of an image are later ones, sorted by class: the first of them, and their number.
    kinds = [(at + 1, ends - at - 1), (ends, len(x) - ends)]
    count = min(pairs // 2, *(int(partners.sum()) for _, partners in kinds))
    if count < FOLDS:
        return {}
    draw = random.Random(0)  # the same pairs for every network
    same, different = (
        _similarities(x, order, *_drawn(first, partners, count, draw)) for first, partners in kinds
    )
    fold = np.arange(count) % FOLDS
    accuracies = []
    for number in range(FOLDS):
        others, tested = fold != number, fold == number
        threshold = _best_threshold(same[others], different[others])
        right = (same[tested] > threshold).mean() + (different[tested] <= threshold).mean()
        accuracies.append(float(right) / 2)
    metrics = {
        "verification_accuracy": float(np.mean(accuracies)),
        "verification_accuracy_std": float(np.std(accuracies, ddof=1)),
    }
    descending = np.sort(different)[::-1]
    for one_in in ONE_IN:
        accepted = count // one_in
        if accepted >= FALSE_ACCEPTS:
            metrics[f"tar_at_far_{1 / one_in:g}"] = float((same > descending[accepted]).mean())
    return metrics


def _drawn(
    first: np.ndarray, partners: np.ndarray, count: int, draw: random.Random
) -> tuple[np.ndarray, np.ndarray]:
    """Draw different pairs by their numbers, because all of them may not fit into memory."""
    ends = np.cumsum(partners)
    numbers = np.array(draw.sample(range(int(ends[-1])), count))
    one = np.searchsorted(ends, numbers, side="right")
    return one, first[one] + numbers - (ends[one] - partners[one])


def _similarities(x: Tensor, order: Tensor, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine similarities of pairs, given by positions in `order`."""
    first, second = (order[torch.from_numpy(part).to(order.device)] for part in (one, other))
    found = [
        (tensors.unit_rows(x[first[rows]].double()) * tensors.unit_rows(x[second[rows]].double())).sum(1)
        for rows in tensors.tiles(len(one), x.shape[1], _ENTRIES)
    ]  # fmt: skip
    # Equal images differ by rounding, which float32 does not show.
    return torch.cat(found).float().double().cpu().numpy()


def _best_threshold(same: np.ndarray, different: np.ndarray) -> float:
    """Return a threshold with the most right answers, halfway between two similarities; the highest of equals."""
    scores = np.concatenate([same, different])
    order = np.argsort(-scores, kind="stable")
    scores, gain = scores[order], np.where(order < len(same), 1, -1)
    right = np.concatenate([[0], np.cumsum(gain)])
    right[1:-1][scores[1:] == scores[:-1]] = -len(scores)  # none is between equal ones
    bounds = np.concatenate([[np.inf], scores, [-np.inf]])
    best = int(right.argmax())
    return float(bounds[best] + bounds[best + 1]) / 2
