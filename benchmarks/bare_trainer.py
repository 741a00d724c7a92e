"""The training loop under Ray Train alone, as the baseline of `benchmarks.startup`.

    python -m benchmarks.bare_trainer TASK.json

The task names the resolved spec, index, cache, storage, and the file for the time of the first step.
Like workers.driver, it imports only in the ranks what only they need.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from dasl_core.train.reporter import NullReporter


class FirstStep(NullReporter):
    """Records the time of the first step."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Write the time of the first step once."""
        if not self.file.exists():
            self.file.write_text(json.dumps(points[0]["time"]))


def train_rank(task: dict[str, Any]) -> None:
    """Train as one rank."""
    from dasl_core.data.index import DatasetIndex
    from dasl_core.distributed import rank
    from dasl_core.spec import ResolvedJobSpec
    from dasl_core.train.build import RunFiles, pretrain

    with tempfile.TemporaryDirectory() as scratch:
        pretrain(
            ResolvedJobSpec.model_validate(task["spec"]),
            DatasetIndex.load(Path(task["index"])),
            FirstStep(Path(task["first_step"])) if rank() == 0 else NullReporter(),
            RunFiles(cache=Path(task["cache"]), scratch=Path(scratch)),
        )


def main() -> None:
    """Run the task until it is complete."""
    task = json.loads(Path(sys.argv[1]).read_text())
    TorchTrainer(
        train_rank,
        train_loop_config=task,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=task["spec"]["resources"]["workers"]),
        run_config=RunConfig(name="bare", storage_path=task["storage"]),
    ).fit()


if __name__ == "__main__":
    main()
