"""What do DAR, SEC and other regularizers bring? ``python -m benchmarks.ablation``.

Two tables, on the emoji of `examples/`, half of the classes held out, with the settings of
`benchmarks.learning`:

* SimCLR alone, with DAR (distances and elementwise), with SEC, and with each other regularizer that shapes the same
  distribution of embeddings, all at matched strength: zero-shot R@1 of the backbone. It asks what DAR's
  reviewers asked: does DAR do more than any other term of its size?
* N-pair and Proxy-Anchor alone, with DAR, with SEC and with the L2 penalty on norms, at the default
  weights of jobs: R@1, R@4, R@8 and NMI of the embedding, as the papers measure.

Beside them, the quantities of DAR's theorems, measured on the held-out embeddings that the loss compares:
mean and standard deviation of the distances between images of different classes, and their largest
difference. Every run with a regularizer is paired with the run of the same seed without.

**Matched strength.** Each term of SimCLR's table has `SHARE` of the gradient of the loss at the backbone's outputs.
The results in `results/ablation.json` are older: they have weights at which each term had this share at the
embeddings, and DAR is the chain, whose gradient is mostly noise.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.learning import run_missing, spec_of
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "ablation.json"
SHARE = 0.1  # of the gradient of the loss

# Without a ramp, so that SEC has its strength throughout, like the others.
TERMS: dict[str, dict[str, Any]] = {
    "dar": {"dar": {"difference": "distance"}},
    "dar elementwise": {"dar": {"difference": "abs"}},
    "sec": {"sec": {"ramp": False}},
    "uniformity": {"regularizers": {"uniformity": {}}},
    "koleo": {"regularizers": {"koleo": {}}},
    "sigreg": {"regularizers": {"sigreg": {}}},
    "negative margin": {"regularizers": {"negative_margin": {}}},
}
SUPERVISED: dict[str, dict[str, Any]] = {
    "none": {},
    "dar": {"dar": {"labels": "class"}},
    "sec": {"sec": {}},
    "l2": {"sec": {"target": "zero"}},
}
SUPERVISED_METHODS = ("npair", "proxy_anchor")
KEPT = (
    "recall_at_1",
    "recall_at_4",
    "recall_at_8",
    "nmi",
    "effective_rank",
    "phi_class_distance_mean",
    "phi_class_distance_std",
    "phi_class_distance_max_difference",
)
# The evaluation of every run: it happens once, at the end.
EVALUATED = {
    "evaluate": {
        "holdout": {"fraction": 0.5, "by": "class"},
        "knn": None,
        "retrieval": [1, 4, 8],
        "clustering": True,
        "every_epochs": 1000,
    }
}
# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def with_share(term: str) -> dict[str, Any]:
    """Return the parts of a spec that add a term with its share."""
    parts: dict[str, Any] = {}
    for section, settings in TERMS[term].items():
        if section == "regularizers":
            parts[section] = {name: each | {"share": SHARE} for name, each in settings.items()}
        else:
            parts[section] = settings | {"share": SHARE}
    return parts


ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "simclr": {"none": {}, **{term: with_share(term) for term in TERMS}},
    **dict.fromkeys(SUPERVISED_METHODS, SUPERVISED),
}
"""The parts of a spec that each row of each method's table adds."""


def main() -> int:
    """Run what is missing and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, max(T95) + 2))
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasl-ablation-") as name:
        unpack_emoji(Path(name))
        specs = {
            f"emoji/{method}, {row}/{seed}": spec_of("emoji", method, seed) | EVALUATED | parts
            for seed in range(arguments.seeds)
            for method in arguments.tables
            for row, parts in ROWS[method].items()
        }
        runs = run_missing(specs, Path(name), arguments.output, arguments.side_by_side, KEPT)
    console = Console(width=160)
    for method in arguments.tables:
        console.print(table(runs, method))
    return 0


def table(runs: dict[str, Any], method: str) -> Table:
    """Return a table of one method: the mean of each metric, and what each row adds to R@1, paired by seed."""
    supervised = method in SUPERVISED_METHODS
    judged = "embedding" if supervised else "backbone"
    title = f"{method}: {judged}, percent; distances between classes of held-out images"
    result = Table(title=title)
    headings = ("", "seeds", "R@1", "added to R@1 (95 %)", "R@4", "R@8", "NMI", "rank")
    for heading in (*headings, "distance", "its std", "largest difference"):
        result.add_column(heading, justify="right" if heading else "left")
    base = of(runs, f"emoji/{method}, none")
    for row in ROWS[method]:
        seeds = of(runs, f"emoji/{method}, {row}")
        if not seeds:
            continue
        metrics = [run["metrics"][judged] for run in seeds.values()]
        # The embedding that the loss compares is not evaluated by itself in self-supervised runs.
        phi = [run["metrics"]["backbone"] for run in seeds.values()]
        added = [
            100 * (run["figures"][judged] - base[seed]["figures"][judged])
            for seed, run in seeds.items()
            if row != "none" and seed in base
        ]
        result.add_row(
            row,
            str(len(seeds)),
            *(percent(metrics, name) for name in ("recall_at_1",)),
            interval(added),
            *(percent(metrics, name) for name in ("recall_at_4", "recall_at_8", "nmi")),
            mean(metrics, "effective_rank", 1),
            *(
                mean(phi, f"phi_class_distance_{name}", 3)
                for name in ("mean", "std", "max_difference")
            ),
        )
    return result


def of(runs: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the runs of a name, by seed."""
    return {
        key.rpartition("/")[2]: run for key, run in runs.items() if key.rpartition("/")[0] == name
    }


def percent(metrics: list[dict[str, float]], name: str) -> str:
    """Return the mean of a share, in percent."""
    return f"{100 * statistics.mean(each[name] for each in metrics):.1f}"


def mean(metrics: list[dict[str, float]], name: str, digits: int) -> str:
    """Return the mean of a metric."""
    return f"{statistics.mean(each[name] for each in metrics):.{digits}f}"


def interval(values: list[float]) -> str:
    """Return mean and half-width of the 95 % interval of paired differences."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:+.1f}"
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.1f} ± {half:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
