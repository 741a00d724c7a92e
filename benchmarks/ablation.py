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

**Matched strength.** `--calibrate` trains SimCLR alone (with a seed that no other run has) and measures,
every `EVERY` steps, the norm of each term's gradient with respect to the embeddings, relative to that of
SimCLR's loss. A term's weight is `SHARE` divided by the median of these ratios. The weights in `WEIGHTS`
are those results, rounded to two digits.
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
from benchmarks.machine import machine, write_results
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "ablation.json"
CALIBRATION = Path(__file__).parent / "results" / "strengths.json"
SHARE = 0.1  # of the gradient of the loss
EVERY = 20
CALIBRATION_SEED = 100

# Weights at which the gradient of a term is `SHARE` of that of SimCLR's loss.
WEIGHTS = {
    "dar": 0.44,
    "dar elementwise": 0.029,
    "sec": 0.064,
    "uniformity": 0.28,
    "koleo": 0.27,
    "sigreg": 0.05,
    "negative margin": 2.4,
}
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


def weighted(term: str, weight: float) -> dict[str, Any]:
    """Return the parts of a spec that add a term with a weight."""
    parts: dict[str, Any] = {}
    for section, settings in TERMS[term].items():
        if section == "regularizers":
            parts[section] = {name: each | {"weight": weight} for name, each in settings.items()}
        else:
            parts[section] = settings | {"weight": weight}
    return parts


ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "simclr": {"none": {}, **{term: weighted(term, WEIGHTS[term]) for term in TERMS}},
    **dict.fromkeys(SUPERVISED_METHODS, SUPERVISED),
}
"""The parts of a spec that each row of each method's table adds."""


def main() -> int:
    """Calibrate, or run what is missing and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--tables", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, max(T95) + 2))
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasl-ablation-") as name:
        unpack_emoji(Path(name))
        if arguments.calibrate:
            return calibrate(Path(name))
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


def calibrate(folder: Path) -> int:
    """Measure the strength of each term during a run of SimCLR, and print the weights for `SHARE`."""
    import torch

    from dasl_core.data.ingest import ingest_folder
    from dasl_core.methods import Outputs, Step
    from dasl_core.spec import JobSpec, resolve
    from dasl_core.train.build import RunFiles, build_trainer, open_run
    from dasl_core.train.criterion import Criterion
    from dasl_core.train.reporter import NullReporter

    torch.set_num_threads(1)
    index = ingest_folder(folder / "emoji")
    alone = spec_of("emoji", "simclr", CALIBRATION_SEED)
    spec = resolve(JobSpec.model_validate(alone), index.facts())
    files = RunFiles(cache=folder / "cache", scratch=folder / "scratch")
    files.scratch.mkdir()
    trainer = build_trainer(open_run(spec, index, NullReporter(), files))
    criterion, method = trainer.gradients.criterion, trainer.method
    criteria = {}
    for term in TERMS:
        regularized = resolve(JobSpec.model_validate(alone | weighted(term, 1.0)), index.facts())
        criteria[term] = Criterion(
            "simclr",
            method,
            regularized.active_regularizers(),
            spec.train.seed,
            torch.device("cpu"),
        )
    ratios: dict[str, list[float]] = {term: [] for term in TERMS}

    def measured(outputs: Outputs, step: Step) -> dict[str, torch.Tensor]:
        if step.index % EVERY == 0:
            embeddings = outputs["embeddings"].detach().float().requires_grad_()
            norms = {}
            for term, each in criteria.items():
                terms = each({"embeddings": embeddings}, step)
                (own,) = (value for name, value in terms.items() if name != "loss_simclr")
                for name, value in ((term, own), ("simclr", terms["loss_simclr"])):
                    (gradient,) = torch.autograd.grad(value, embeddings, retain_graph=True)
                    norms[name] = float(gradient.norm())
            for term, values in ratios.items():
                values.append(norms[term] / norms["simclr"])
        return criterion(outputs, step)

    trainer.gradients.criterion = measured
    try:
        trainer.train()
    finally:
        trainer.close()
    medians = {term: statistics.median(values) for term, values in ratios.items()}
    weights = {term: float(f"{SHARE / median:.2g}") for term, median in medians.items()}
    write_results(
        CALIBRATION,
        {
            "machine": machine("torch", "timm"),
            "share": SHARE,
            "ratios": medians,
            "weights": weights,
        },
    )
    print(weights)
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
