"""Effects of single changes, where the variants are an orthogonal design with two values of each setting.

As in half of the combinations of four settings, each job counts for every setting, so that one seed suffices (Box,
Hunter and Hunter, "Statistics for Experimenters", 2005, chapter 6).
"""

import json
import math
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import variance
from typing import Any

from dasl_core.spec.differences import differing
from service.experiments.statistics import t_quantile
from service.jobs.clones import merge

Design = dict[str, list[int]]
"""Of each change, 1 for each variant with it and -1 for each without it."""


def find_design(
    base: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]], baseline: str
) -> Design:
    """Return the design of variants, by their changes of a spec; empty if they are none."""
    design = {"mean": [1] * len(changes)}
    settings = differing([merge(dict(base), dict(each)) for each in changes.values()])
    for path, values in settings.items():
        texts = ["the default" if value is None else json.dumps(value) for value in values]
        usual = texts[[*changes].index(baseline)]
        signs = [-1 if text == usual else 1 for text in texts]
        if len({*texts}) != 2 or any(sum(map(mul, signs, each)) for each in design.values()):
            return {}
        [other] = {*texts} - {usual}
        design[f"{path} {other} instead of {usual}"] = signs
    del design["mean"]
    different = {*zip(*design.values(), strict=True)}  # equal ones have the same seeds, too
    return design if len(different) == len(changes) > len(design) + 2 else {}


def effects(
    design: Design, values: Sequence[float], resolution: float | None
) -> list[tuple[str, float, float]]:
    """Return each change, what it adds to the mean, and half its 95 % interval; the largest first.

    The interval contains what single changes leave unexplained: the seed, and changes that only work together.
    """
    n, freedom = len(values), len(values) - 1 - len(design)
    found = {change: 2 / n * sum(map(mul, signs, values)) for change, signs in design.items()}
    left = (n - 1) * variance(values) - n / 4 * sum(effect**2 for effect in found.values())
    # Rounding to steps alone gives a value a variance of step² / 12.
    std = math.sqrt(max(left / freedom, (resolution or 0.0) ** 2 / 12))
    half = t_quantile(freedom) * std * 2 / math.sqrt(n)
    ranked = sorted(found.items(), key=lambda item: -abs(item[1]))
    return [(change, effect, half) for change, effect in ranked]
