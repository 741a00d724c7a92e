"""Quality of ResNets that see images of 64 pixels at 96 with timm's stem: ``python -m benchmarks.stems``.

"auto" chooses this for 40 to 95 pixels (`dasl_core/spec/resolve/backbone.py`), because the stem for small images costs
seven times as much. SimCLR with a small CNN on half of the emoji of `examples/`, half of their classes held out: zero-shot
R@1, paired by seed, of 96 pixels less that of 64 with the small stem. The 90 % interval within one point means that they
are equivalent. A run takes 3 and 13 minutes of a core; each has one thread. The results file keeps finished runs, which
are not repeated.
"""

import argparse
import json
import math
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.learning import COMMON, run_missing
from benchmarks.parity.equivalence import LEVEL
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "stems.json"
EPOCHS, MARGIN = 6, 1.0
STEMS: dict[str, dict[str, Any]] = {
    "64 px, small": {"image_size": 64, "stem": "small"},
    "96 px, standard": {"image_size": 96, "stem": "standard"},
}


def main() -> int:
    """Run what is missing and print a table; return 1 if 96 pixels are worse by a point or more."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stems",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    specs = {
        f"emoji/{name}/{seed}": spec_of(name, seed)
        for seed in range(arguments.seeds)
        for name in STEMS
    }
    with tempfile.TemporaryDirectory(prefix="dasl-stems-") as name:
        folder = Path(name)
        for number, images in enumerate(sorted(unpack_emoji(folder).iterdir())):
            if number % 2:
                shutil.rmtree(images)
        runs = run_missing(specs, folder, arguments.output, arguments.side_by_side)
    return show({key: runs[key] for key in specs}, arguments.seeds)


def spec_of(name: str, seed: int) -> dict[str, Any]:
    """Return the spec of one run."""
    spec: dict[str, Any] = json.loads(json.dumps(COMMON["emoji"]))
    backbone = STEMS[name]
    spec |= {"name": f"{backbone['stem']}{backbone['image_size']}-{seed}", "dataset": "emoji"}
    spec["method"] = {"name": "simclr", "temperature": 0.07}
    spec["backbone"] |= backbone
    spec["train"] |= {"precision": "fp32", "epochs": EPOCHS, "seed": seed, "collapse": "ignore"}
    spec["train"]["checkpoint_every_epochs"], spec["evaluate"]["every_epochs"] = 10_000, EPOCHS
    return spec


def show(runs: dict[str, Any], seeds: int) -> int:
    """Print R@1 in percent by seed, and the paired difference with its 90 % interval."""
    table = Table("seed", *STEMS, "difference", title="Zero-shot R@1, percent")
    differences = []
    for seed in range(seeds):
        small, large = (100 * runs[f"emoji/{name}/{seed}"]["figures"]["backbone"] for name in STEMS)
        differences.append(large - small)
        table.add_row(str(seed), f"{small:.1f}", f"{large:.1f}", f"{large - small:+.1f}")
    Console().print(table)
    mean, wide = statistics.mean(differences), math.inf
    if seeds > 1:
        error = statistics.stdev(differences) / math.sqrt(seeds)
        wide = float(stats.t.ppf(1 - LEVEL, seeds - 1)) * error
    print(f"difference {mean:+.2f} points, 90 % interval [{mean - wide:+.2f}, {mean + wide:+.2f}]")
    return 1 if mean - wide < -MARGIN else 0


if __name__ == "__main__":
    raise SystemExit(main())
