"""The real driver and reporter, with a rank that computes hashes instead of training.

`python -m tests.support.stand_in.training --run R --job J --attempt N` is `workers.driver` with other ranks. A step
depends on the one before it and on the seed, so a step that is lost or done twice changes the end.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from dasl_core.vocabulary import Desired, Outcome
from service.client.worker import WorkerClient
from service.protocol import AttemptStart
from tests.chaos.history import FINAL_WEIGHTS
from workers import driver
from workers.artifacts import download
from workers.reporter import ApiReporter

STEPS_AN_EPOCH = 4
_STEP_SECONDS = 0.02
_STEPS_A_REPORT = 10
_OUTCOMES: dict[Desired, Outcome] = {"run": "succeeded", "cancel": "cancelled", "pause": "paused"}
# Ray ends the ranks of a killed driver, but not at once.
_ORPHANED_FOR_SECONDS = 1.0


def ranks(start: AttemptStart, config: dict[str, object]) -> BaseException | None:
    """Replace `workers.driver.run_ranks`: run one rank in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.stand_in.training", "--rank", str(os.getpid())],
        input=json.dumps(config),
        text=True,
        check=False,
    )
    return OSError(f"a rank ended with {done.returncode}") if done.returncode else None


def end_with(driver: int) -> None:
    """End this process soon after its driver, whatever it does then, as Ray would end it."""
    # The driver may have ended before this process has run its first line.
    while os.getppid() == driver:
        time.sleep(0.1)
    time.sleep(_ORPHANED_FOR_SECONDS)
    os._exit(1)


def train(config: dict[str, Any]) -> None:
    """Run as a rank."""
    start = AttemptStart.model_validate(config["start"])
    spec = start.job_spec()
    client = WorkerClient(config["url"], config["token"], config["run"])
    total = spec.train.epochs * STEPS_AN_EPOCH
    every = int(spec.train.checkpoint_every_epochs) * STEPS_AN_EPOCH
    with (
        tempfile.TemporaryDirectory(prefix="dasl-") as scratch,
        ApiReporter(
            client, config["job"], config["attempt"], start.artifacts_uri, start.heartbeat_seconds
        ) as reporter,
    ):
        first, weights = _state(start, Path(scratch))
        print(f"training continues after step {first}", flush=True)
        points: list[dict[str, Any]] = []
        desired: Desired = "run"
        for step in range(first + 1, total + 1):
            weights = hashlib.sha256(f"{weights} {spec.train.seed}".encode()).hexdigest()
            time.sleep(_STEP_SECONDS)
            value = int(weights[:8], 16) / 2**32
            points.append({"step": step, "time": time.time(), "values": {"loss": value}})
            desired = reporter.desired()
            saves = step == total or step % every == 0 or desired != "run"
            if saves or len(points) == _STEPS_A_REPORT:
                reporter.metrics(points)
                reporter.progress(
                    {
                        "step": step,
                        "total_steps": total,
                        "epoch": step / STEPS_AN_EPOCH,
                        "epochs": total / STEPS_AN_EPOCH,
                        "loss": value,
                        "images_per_second": 1 / _STEP_SECONDS,
                        "eta_seconds": (total - step) * _STEP_SECONDS,
                    }
                )
                points = []
            if saves:
                folder = Path(scratch) / f"step-{step}"
                folder.mkdir()
                (folder / FINAL_WEIGHTS).write_text(weights)
                (folder / "progress.json").write_text(json.dumps({"step": step}))
                reporter.checkpoint(folder, step, step / STEPS_AN_EPOCH, {}, step == total)
            if desired != "run":
                break
        reporter.flush()
        client.finish(_OUTCOMES[desired])
    client.close()


def _state(start: AttemptStart, scratch: Path) -> tuple[int, str]:
    if start.resume is None:
        return 0, ""
    folder = scratch / "resume"
    folder.mkdir()
    download(start.resume.uri, start.resume.files, folder)
    step = int(json.loads((folder / "progress.json").read_text())["step"])
    return step, (folder / FINAL_WEIGHTS).read_text()


def main() -> int:
    """Run a driver or one of its ranks."""
    if sys.argv[1:2] == ["--rank"]:
        threading.Thread(target=end_with, args=(int(sys.argv[2]),), daemon=True).start()
        train(json.load(sys.stdin))
        return 0
    driver.run_ranks = ranks
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
