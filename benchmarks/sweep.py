"""Which weights of DAR and SEC? ``python -m benchmarks.sweep``.

Trains every method on the emoji of `benchmarks.learning`, in short runs of the same recipes at 32 pixels:
alone, with several weights of DAR and both kinds of difference, and with SEC. Then SimCLR with SGD and with
AdamW, alone and with SEC: the norms of its embeddings and their rotation per step, a question of SEC's
reviewers.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.learning import METHODS, run_missing, spec_of
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "sweep.json"
EPOCHS = 10
SWEPT = [method for method in METHODS if "+" not in method]
# Elementwise differences sum over 128 coordinates, so a hundredth of the weight has the same effect.
REGULARIZERS: dict[str, dict[str, Any]] = {
    "none": {},
    **{
        f"dar distance {weight}": {"dar": {"weight": weight, "difference": "distance"}}
        for weight in (0.01, 0.05, 0.1, 0.5, 1.0)
    },
    **{
        f"dar elementwise {weight}": {"dar": {"weight": weight, "difference": "abs"}}
        for weight in (0.0001, 0.001, 0.01)
    },
    "sec 0.1": {"sec": {"weight": 0.1}},
}
OPTIMIZERS = {"sgd": {"name": "sgd", "lr": 0.1}, "adamw": {"name": "adamw", "lr": 0.003}}


def main() -> int:
    """Run what is missing and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=SWEPT, default=SWEPT)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    specs = {}
    for seed in range(arguments.seeds):
        for method in arguments.methods:
            for name, parts in REGULARIZERS.items():
                specs[f"emoji/{method}, {name}/{seed}"] = short(method, seed) | parts
        for optimizer, settings in OPTIMIZERS.items():
            for name, parts in (("none", {}), ("sec", {"sec": {"weight": 0.1}})):
                spec = short("simclr", seed) | parts
                spec["train"] |= {"optimizer": settings}
                specs[f"emoji/simclr, {optimizer}, {name}/{seed}"] = spec
    with tempfile.TemporaryDirectory(prefix="dasl-sweep-") as name:
        unpack_emoji(Path(name))
        runs = run_missing(specs, Path(name), arguments.output, arguments.side_by_side)
    console = Console(width=120)
    console.print(weights(runs))
    console.print(optimizers(runs))
    return 0


def short(method: str, seed: int) -> dict[str, Any]:
    """Return the recipe of `benchmarks.learning` with `EPOCHS` epochs of small images."""
    spec = spec_of("emoji", method, seed)
    spec["backbone"] |= {"image_size": 32}
    spec["train"] |= {"epochs": EPOCHS}
    spec["evaluate"] |= {"every_epochs": EPOCHS}
    return spec


def weights(runs: dict[str, Any]) -> Table:
    """Return a table of zero-shot R@1 by method and regularizer, mean of the seeds."""
    table = Table(title=f"Zero-shot R@1 after {EPOCHS} epochs, percent")
    table.add_column("")
    for method in SWEPT:
        table.add_column(method, justify="right")
    for name in REGULARIZERS:
        row = []
        for method in SWEPT:
            recalls = [
                run["figures"]["backbone"] for run in of(runs, f"emoji/{method}, {name}").values()
            ]
            row.append(f"{100 * statistics.mean(recalls):.1f}" if recalls else "")
        table.add_row(name, *row)
    return table


def optimizers(runs: dict[str, Any]) -> Table:
    """Return a table of SimCLR by optimizer, with and without SEC: means over all steps, and final R@1."""
    names = ("embedding_norm", "embedding_norm_std", "angular_update")
    table = Table(title="SimCLR: raw embeddings and their turn a step, means over all steps")
    for heading in ("", "R@1", *names):
        table.add_column(heading, justify="right" if heading else "left")
    for optimizer in OPTIMIZERS:
        for part in ("none", "sec"):
            seeds = of(runs, f"emoji/simclr, {optimizer}, {part}").values()
            if seeds:
                recall = statistics.mean(run["figures"]["backbone"] for run in seeds)
                means = [statistics.mean(run["steps"][name] for run in seeds) for name in names]
                table.add_row(
                    f"{optimizer}, {part}",
                    f"{100 * recall:.1f}",
                    *(f"{value:.4f}" for value in means),
                )
    return table


def of(runs: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the runs of a name, with all seeds."""
    return {key: run for key, run in runs.items() if key.rpartition("/")[0] == name}


if __name__ == "__main__":
    raise SystemExit(main())
