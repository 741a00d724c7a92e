"""`python -m examples.papers.compare NAME RUN`: what a run measured beside the figures of its row.

The last epoch is the result. The best one is shown beside it where the row was evaluated during the training: authors
whose code reports it choose it on the images that it is reported on.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.papers.__main__ import rows
from examples.papers.row import Row
from examples.rows.table import rows as other_rows

METRICS = {
    "NMI": "nmi",
    "F1": "pairwise_f1",
    "k-NN": "knn_top1",
    "Top-1": "linear_top1",
    "Top-5": "linear_top5",
}
CHOOSE = ("R@1", "k-NN")
"""What the best epoch is chosen by."""


def compare(row: Row, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Write a table: published figures, those of the last epoch, and of the epoch that is best by R@1 or k-NN."""
    subject = "backbone" if row.dataset.startswith(("imagenet", "cifar")) else "embedding"
    records = [each for each in evaluations if each["subject"] == subject]
    if not records:
        raise ValueError(f"the run has no evaluation of the {subject}; let it end its first one")
    last = records[-1]
    by = next((_metric(name) for name in CHOOSE if name in row.published), None)
    best = max(records, key=lambda each: each["metrics"].get(by, 0.0)) if by else last
    names = [name for name in row.published if not name.endswith("(longer)")]
    lines = [
        f"| | Published{f' ({row.epoch} epoch)' if row.epoch else ''} | Last epoch ({last['epoch']:g}) | Best epoch ({best['epoch']:g}) |",
        "|---|---|---|---|",
    ]
    for name in names:
        measured = (each["metrics"].get(_metric(name)) for each in (last, best))
        cells = ["" if value is None else f"{100 * value:.2f}" for value in measured]
        lines.append(f"| {name} | {row.published[name]:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measured(run: Path) -> list[dict[str, Any]]:
    """Read the evaluations of a run, oldest first.

    Args:
        run: output folder of `dasl train`.

    Raises:
        ValueError: it has no checkpoint.
    """
    files = sorted(run.glob("checkpoints/*/metrics.json"))
    if not files:
        raise ValueError(f"{run} has no checkpoint; expected the output folder of `dasl train`")
    evaluations: list[dict[str, Any]] = json.loads(files[-1].read_text(encoding="utf-8"))[
        "evaluations"
    ]
    return evaluations


def _metric(name: str) -> str:
    return METRICS.get(name, name.replace("R@", "recall_at_"))


def main() -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m examples.papers.compare")
    by_name = {row.name: row for row in (*rows(), *other_rows())}
    parser.add_argument(
        "name", choices=by_name, metavar="NAME", help="name of a spec, such as dar-cub200-npair-dar"
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of `dasl train`")
    options = parser.parse_args()
    try:
        print(compare(by_name[options.name], measured(options.run)))
    except ValueError as error:
        parser.error(f"RUN: {error}")


if __name__ == "__main__":
    main()
