"""The benchmark of a GPU, with tiny networks on a CPU."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import NEEDED
from benchmarks.gpu.own import Bench
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.scenario import SCENARIOS, tiny
from benchmarks.gpu.theirs import views_loader
from dasl_core.data.index import DatasetIndex
from tests.support.installations import clean_environment

ROOT = Path(__file__).parents[2]
# `-S` leaves out the environment's packages.
PROGRAM = """
import sys
from benchmarks.gpu.__main__ import main

folder_of_pytest = sys.argv.pop(1)
failed = main(sys.argv[1:])
sys.path.append(folder_of_pytest)
import tests.cuda.test_cuda
sys.exit(failed)
"""


def folder_of(folder: Path, distributions: Iterable[str]) -> Path:
    """Link the packages of distributions, and of what these require, into a new folder."""
    folder.mkdir()
    waiting, seen = list(distributions), set[str]()
    for name in waiting:  # grows meanwhile
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():  # several may share a package
                (folder / top).symlink_to(str(distribution.locate_file(top)))
        required = map(Requirement, distribution.requires or [])
        waiting += [
            canonicalize_name(each.name)
            for each in required
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return folder


def result_of(
    folder: Path, *options: str, beside: Iterable[str] = ()
) -> tuple[dict[str, Any], str]:
    """Run the benchmark with no packages but those that it needs; then import the CUDA tests, which need pytest."""
    packages = folder_of(folder / "needed", [*NEEDED, *beside])
    arguments = ["--tiny", "--device", "cpu", "--cores", "1", "--output", str(folder / "gpu")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, folder_of(folder / "pytest", ["pytest"]), *arguments, *options],
        env=clean_environment(PYTHONPATH=f"{ROOT}:{packages}"),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["result"]
    return result, (folder / "gpu.md").read_text()


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_measures(tmp_path: Path) -> None:
    result, page = result_of(tmp_path, beside=["lightly"])
    assert result["cut"] == []
    for scenario in SCENARIOS:
        parts = result["scenarios"][scenario.name]
        assert parts.keys() == {part.name for part in PARTS}
        assert parts["train"]["form"] == parts["inputs"]["form"] == "jpeg shards"
        assert f"{scenario.name}: DASL: training from the image cache, jpeg shards" in page
        for trained in (parts["train"], parts["lightly"]):
            assert trained["steps"] == 2
            assert trained["images_per_second"] > 0
            assert 0 <= trained["data_wait_share"] <= 1
            assert trained["peak_bytes"] > 0
        steps = parts["steps"]
        for name in ("step", "model alone", "step of lightly"):
            assert steps[name]["step_ms"] > 0
        for name in ("DAR", "SEC"):
            assert steps[name]["share_of_step"] > 0
            assert "difference_share" in steps[name]
        assert parts["inputs"]["images"] == 4
        assert parts["inputs"]["views_ms"] > 0
        assert "aten::" in parts["profile"]["table"]
        assert f"Profile of a step: {scenario.name}" in page
    assert "not measured" in page  # what a CPU has not: the copy to a GPU


def test_workers_are_not_forked_from_a_process_with_a_gpu(pictures: DatasetIndex) -> None:
    for scenario in map(tiny, SCENARIOS):
        bench = Bench(
            scenario, pictures, [Path("0.jpg")], Path(), torch.device("cpu"), 2, 1, 1, 1, 1
        )
        loader = views_loader(bench, workers=2)  # starts no process yet
        assert loader.multiprocessing_context.get_start_method() == "forkserver"
        pickle.dumps(loader.dataset)  # what a worker gets


@pytest.mark.slow
def test_gpu_benchmark_lists_what_it_had_no_time_for(tmp_path: Path) -> None:
    result, page = result_of(tmp_path, "--minutes", "0")
    assert result["cut"] == [
        f"{scenario.name}, {part.name}: "
        + ("skipped, because lightly is not installed" if part.needs else "no time is left")
        for scenario in SCENARIOS
        for part in PARTS
    ]
    assert all(f"* {line}" in page for line in result["cut"])
    assert not any(result["scenarios"].values())
