"""What do DAR and SEC bring beside other regularizers? ``python -m benchmarks.ablation``.

Every added term has the same share of the gradient of the method's loss at the backbone's outputs, and each run is
paired with the run of the same seed without a term.

* ``fonts``, the demo's images and recipe: SimCLR and BYOL, alone, with DAR over all pairs at a share of 10 and of 30 %,
  with DAR's chain, and with KoLeo.
* ``emoji``, for which nothing was tuned here: the demo's recipe with the views of `benchmarks.learning`. SimCLR alone,
  with DAR and with KoLeo; N-pair alone, with DAR by class, with SEC and with the L2 penalty on norms.

All classes of the evaluation are held out of training. The figure is zero-shot R@1 of the backbone, for N-pair of
the embedding, as the papers measure, with the 95 % interval of Student's t for what a term adds, and the smallest
true difference that as many seeds find in four of five cases. Beside it are the quantities of DAR's theorems, of
the held-out embeddings that the loss compares: mean, standard deviation and largest difference of the distances
between images of different classes.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.demo import spec_of
from benchmarks.learning import COMMON, run_missing
from examples.emoji import unpack_emoji
from examples.fonts import unpack_fonts
from service.experiments.statistics import paired_difference

RESULTS = Path(__file__).parent / "results" / "ablation.json"
SHARE = 0.1  # of the gradient of the loss

NONE: dict[str, Any] = {"dar": None}
DAR = {"dar": {"share": SHARE}}
KOLEO = {"dar": None, "regularizers": {"koleo": {"share": SHARE}}}
ARMS: dict[str, dict[str, Any]] = {
    "none": NONE,
    "dar": DAR,
    "dar, share 0.3": {"dar": {"share": 0.3}},
    "dar, chain": {"dar": {"share": SHARE, "estimator": "chain"}},
    "koleo": KOLEO,
}
# Without a ramp, so that SEC has its strength throughout, like the others.
SUPERVISED: dict[str, dict[str, Any]] = {
    "none": NONE,
    "dar": {"dar": {"share": SHARE, "labels": "class"}},
    "sec": {"dar": None, "sec": {"share": SHARE, "ramp": False}},
    "l2": {"dar": None, "sec": {"share": SHARE, "ramp": False, "target": "zero"}},
}
TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "fonts/simclr": ARMS,
    "fonts/byol": ARMS,
    "emoji/simclr": {"none": NONE, "dar": DAR, "koleo": KOLEO},
    "emoji/npair": SUPERVISED,
}
"""The parts of a spec that each arm of each table adds."""
CHANGES: dict[str, dict[str, Any]] = {
    "fonts/simclr": {},
    "fonts/byol": {"method": {"name": "byol", "hidden_dim": 256, "projection_dim": 128}},
    "emoji/simclr": {},
    "emoji/npair": {"method": {"name": "npair"}},
}
# That of the demo, whose images may also be in a tar with their folder's name.
FONTS_HOLDOUT = {"fraction": 0.33, "by": "group", "group": {"pattern": "^([a-z0-9]+)"}}
EMOJI_HOLDOUT = {"fraction": 0.5, "by": "class"}
JUDGED = {"emoji/npair": "embedding"}
KEPT = (
    "recall_at_1",
    "recall_at_5",
    "effective_rank",
    "phi_class_distance_mean",
    "phi_class_distance_std",
    "phi_class_distance_max_difference",
)
HEADINGS = ("", "seeds", "R@1", "added (95 %)", "detectable", "R@5", "rank")


def specs_of(table: str, seed: int) -> dict[str, dict[str, Any]]:
    """Return the spec of each arm of a table, by the name of its run."""
    spec = spec_of(seed)
    # BYOL ran on a processor that only emulates bfloat16; arms are compared within a table.
    spec["train"]["precision"] = "fp32" if table == "fonts/byol" else "bf16"
    spec["evaluate"]["holdout"] = FONTS_HOLDOUT
    if table.startswith("emoji/"):
        spec |= {"dataset": "emoji", "augment": COMMON["emoji"]["augment"]}
        spec["evaluate"]["holdout"] = EMOJI_HOLDOUT
    spec |= CHANGES[table]
    return {f"{table}, {arm}/{seed}": spec | parts for arm, parts in TABLES[table].items()}


def main() -> int:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    specs: dict[str, dict[str, Any]] = {}
    for seed in range(arguments.seeds):
        for table in arguments.tables:
            specs |= specs_of(table, seed)
    with tempfile.TemporaryDirectory(prefix="dasl-ablation-") as name:
        unpack_emoji(Path(name))
        unpack_fonts(Path(name))
        runs = run_missing(specs, Path(name), arguments.output, arguments.side_by_side, KEPT)
    console = Console(width=160)
    for table in arguments.tables:
        console.print(show(runs, table))
    return 0


def show(runs: dict[str, Any], table: str) -> Table:
    """Return a table: the mean of each metric, and what each arm adds to R@1, paired by seed."""
    judged = JUDGED.get(table, "backbone")
    arms = {arm: of(runs, f"{table}, {arm}") for arm in TABLES[table]}
    base = {seed: 100 * run["figures"][judged] for seed, run in arms["none"].items()}
    raw = statistics.mean(100 * run["figures"]["raw"] for run in arms["none"].values())
    result = Table(title=f"{table}: {judged}, percent; raw pixels {raw:.1f}")
    for heading in (*HEADINGS, "distance", "its std", "largest difference"):
        result.add_column(heading, justify="right" if heading else "left")
    for arm, seeds in arms.items():
        if not seeds:
            continue
        values = {seed: 100 * run["figures"][judged] for seed, run in seeds.items()}
        metrics = [run["metrics"][judged] for run in seeds.values()]
        # The embedding that the loss compares is not evaluated by itself in self-supervised runs.
        phi = [run["metrics"]["backbone"] for run in seeds.values()]
        distances = ("mean", "std", "max_difference")
        result.add_row(
            arm,
            str(len(seeds)),
            f"{statistics.mean(values.values()):.1f}",
            *(added(values, base) if arm != "none" else ("", "")),
            f"{100 * statistics.mean(each['recall_at_5'] for each in metrics):.1f}",
            f"{statistics.mean(each['effective_rank'] for each in metrics):.1f}",
            *(
                f"{statistics.mean(each[f'phi_class_distance_{name}'] for each in phi):.3f}"
                for name in distances
            ),
        )
    return result


def of(runs: dict[str, Any], name: str) -> dict[int, Any]:
    """Return the runs of a name, by seed."""
    return {
        int(key.rpartition("/")[2]): run
        for key, run in runs.items()
        if key.rpartition("/")[0] == name
    }


def added(values: dict[int, float], base: dict[int, float]) -> tuple[str, str]:
    """Return the mean of paired differences with its interval, and the difference that can be found."""
    difference = paired_difference(values, base)
    if difference is None or difference.t_interval is None or difference.detectable is None:
        return "", ""
    half = difference.t_interval[1] - difference.mean
    return f"{difference.mean:+.1f} ± {half:.1f}", f"{difference.detectable:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
