"""Losses of every method, bit for bit as they were before the code was reorganized.

`python -m tests.dasl_core.test_golden_losses NAME` adds a new method to `tests/fixtures/golden_losses.json`
or replaces its losses; without a name it records all methods. Replace losses only in a commit that means to
change what a method computes, and say so there.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.spec.methods import METHODS
from tests.support.training_world import (
    FAMILIES,
    KIN,
    TINY_BACKBONES,
    Recorder,
    image_folder,
    ingest,
    resolved,
    run,
    supported,
)

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden_losses.json"
STEPS = 12
# Steps before rounding that differs has grown: with AVX-512, MoCo v3's fifth gradient is 3% off one of AVX2.
COMPARED_ELSEWHERE = 4
METRICS = ("loss", "gradient_norm", "dar", "sec")
REGULARIZED: dict[str, Any] = {"dar": {"weight": 0.1, "estimator": "chain"}, "sec": {"weight": 0.5}}
DISTANCES = {"dar": {"difference": "distance", "weight": 0.5, "estimator": "unbiased"}}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((method, "plain", {}) for method in sorted(METHODS)),
    *(
        (method, "_and_".join(parts), parts)
        for method in sorted(METHODS)
        if method not in KIN and (parts := supported(method, **REGULARIZED))
    ),
    ("simclr", "dar_on_distances", DISTANCES),
]


def environment() -> dict[str, str]:
    """Versions and CPU, which determine the order of float32 sums and so their bits."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    return {
        "torch": torch.__version__,
        "timm": timm.__version__,
        "cpu": cpu,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def curves(
    method: str, regularizers: dict[str, Any], index: DatasetIndex, folder: Path
) -> dict[str, list[float]]:
    """Metrics of the first steps of a tiny run on one thread, one value a step."""
    spec = resolved(
        index,
        method={"name": method},
        backbone={} if method in TINY_BACKBONES else {"stem": "small"},
        train={"epochs": 7, "checkpoint_every_epochs": 100},
        evaluate={"every_epochs": 100},
        **regularizers,
    )
    recorder = Recorder(
        folder / "checkpoints", lambda started: "cancel" if started >= STEPS else "run"
    )
    assert run(spec, index, folder / "cache", recorder) == "cancelled"
    points = recorder.points[:STEPS]
    assert [point["step"] for point in points] == list(range(1, STEPS + 1))
    return {
        name: [point["values"][name] for point in points]
        for name in METRICS
        if name in points[0]["values"]
    }


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("method", "variant", "regularizers"),
    [
        pytest.param(
            *case, marks=[] if case[1] == "plain" and case[0] in FAMILIES else pytest.mark.slow
        )
        for case in CASES
    ],
)
def test_losses_equal_recorded_ones(
    method: str, variant: str, regularizers: dict[str, Any], pictures: DatasetIndex, tmp_path: Path
) -> None:
    check(method, variant, curves(method, regularizers, pictures, tmp_path))


def check(method: str, variant: str, now: dict[str, list[float]]) -> None:
    """Compare losses with recorded ones: bit for bit where they were recorded, else the first ones."""
    golden = json.loads(GOLDEN.read_text())
    recorded = golden["curves"][method][variant]
    assert now.keys() == recorded.keys()
    if golden["environment"] == environment():
        assert now == recorded
    for name, values in now.items():
        expected = pytest.approx(recorded[name][:COMPARED_ELSEWHERE], rel=1e-2, abs=1e-4)
        assert values[:COMPARED_ELSEWHERE] == expected, name


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the losses of the current code."""
    parser = argparse.ArgumentParser(description="Write tests/fixtures/golden_losses.json.")
    parser.add_argument("methods", nargs="*", help="record only these; all others stay as they are")
    methods = parser.parse_args(arguments).methods
    torch.set_num_threads(1)
    golden: dict[str, Any] = {"environment": environment(), "curves": {}}
    if methods:
        golden = json.loads(GOLDEN.read_text())
        if golden["environment"] != environment():
            parser.error(
                f"the others were recorded in another environment: {golden['environment']}"
            )
    with tempfile.TemporaryDirectory() as name:
        index = ingest(image_folder(Path(name) / "pictures"))
        for method, variant, regularizers in CASES:
            if methods and method not in methods:
                continue
            folder = Path(name) / method / variant
            folder.mkdir(parents=True)
            losses = curves(method, regularizers, index, folder)
            golden["curves"].setdefault(method, {})[variant] = losses
    golden["curves"] = dict(sorted(golden["curves"].items()))
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
