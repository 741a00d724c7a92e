"""Compare SimCLR with raw pixels on words in many fonts: ``python -m benchmarks.demo``.

Trains SimCLR on words in 114 fonts, alone and with DAR, with five seeds each, and finds the font of a word among
56 other fonts by its nearest neighbor: zero-shot R@1, beside raw pixels and the untrained network. The
recipe was chosen on a third part of the fonts (`--choose`). The limits are three times raw pixels on average, and
2.5 times with each seed.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.learning import run_missing
from examples.fonts import PARTS, unpack_fonts

RESULTS = Path(__file__).parent / "results" / "demo.json"
MEAN, EACH = 3.0, 2.5
ROWS: dict[str, dict[str, Any]] = {"simclr": {}, "simclr + dar": {"dar": {}}}
TRAIN, CHOOSE, REPORT = PARTS


def spec_of(seed: int, part: str) -> dict[str, Any]:
    """Return the demo's job. The weight of the strokes tells fonts apart, so brightness and contrast stay."""
    return {
        "name": f"fonts-{seed}",
        "dataset": TRAIN,
        "method": {"name": "simclr", "temperature": 0.1},
        "backbone": {"name": "test_resnet", "image_size": 48, "stem": "standard"},
        "augment": {"flip": 0.0, "jitter": 0.0, "grayscale": 0.0, "blur": 0.0},
        "train": {
            "epochs": 20,
            "batch_size": 128,
            "precision": "bf16",
            "optimizer": {"name": "adamw", "lr": 0.003},
            "seed": seed,
            "checkpoint_every_epochs": 10_000,
        },
        "evaluate": {"dataset": part, "knn": None, "retrieval": [1], "every_epochs": 20},
    }


def main() -> int:
    """Run what is missing and print the table; return 1 if a limit is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--choose", action="store_true", help="evaluate on the part for choosing")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    part = CHOOSE if arguments.choose else REPORT
    specs = {
        f"fonts/{row}, {part}/{seed}": spec_of(seed, part) | changes
        for seed in range(arguments.seeds)
        for row, changes in ROWS.items()
    }
    with tempfile.TemporaryDirectory(prefix="dasl-fonts-") as name:
        for each in (TRAIN, part):
            unpack_fonts(Path(name), each)
        runs = run_missing(specs, Path(name), arguments.output, arguments.side_by_side)
    table = Table(title=f"Zero-shot R@1 on {part}, percent")
    for heading in ("", "seeds", "raw pixels", "untrained", "trained", "lowest", "times raw", "s"):
        table.add_column(heading, justify="right" if heading else "left")
    met = True
    for row in ROWS:
        found = [runs[key] for key in specs if key.startswith(f"fonts/{row},")]
        figures = [run["figures"] for run in found]
        mean = {
            subject: statistics.mean(each[subject] for each in figures)
            for subject in ("raw", "untrained", "backbone")
        }
        lowest = min(each["backbone"] / each["raw"] for each in figures)
        met = met and mean["backbone"] >= MEAN * mean["raw"] and lowest >= EACH
        table.add_row(
            row,
            str(len(found)),
            *(f"{100 * value:.1f}" for value in mean.values()),
            f"{100 * min(each['backbone'] for each in figures):.1f}",
            f"{mean['backbone'] / mean['raw']:.2f}",
            f"{statistics.mean(run['seconds'] for run in found):.0f}",
        )
    Console(width=120).print(table)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
