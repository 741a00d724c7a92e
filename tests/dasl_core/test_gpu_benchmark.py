"""The benchmark of a GPU, with tiny networks on a CPU."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.own import Bench
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.scenario import SCENARIOS, tiny
from benchmarks.gpu.theirs import views_loader
from dasl_core.data.index import DatasetIndex


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def result_of(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    arguments = ["--tiny", "--device", "cpu", "--cores", "1", "--output", str(folder / "gpu")]
    assert main([*arguments, *options]) == 0
    result: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["result"]
    return result, (folder / "gpu.md").read_text()


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_measures(tmp_path: Path) -> None:
    result, page = result_of(tmp_path)
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


def test_gpu_benchmark_lists_what_it_had_no_time_for(tmp_path: Path) -> None:
    result, page = result_of(tmp_path, "--minutes", "0")
    names = [f"{scenario.name}, {part.name}" for scenario in SCENARIOS for part in PARTS]
    assert result["cut"] == [f"{name}: no time is left" for name in names]
    assert all(f"* {line}" in page for line in result["cut"])
    assert not any(result["scenarios"].values())
