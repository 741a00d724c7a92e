"""Driver whose ranks print lines and then fail; arguments: FOLDER LINES.

Its ranks are Ray's, because their output through Ray is under test; `stand_in.training` runs without Ray.
"""

import sys

import workers.rank
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from service.client.attempt_token import read_attempt_token
from service.protocol import AttemptStart, WorkerDataset
from workers.driver import run_ranks

FACTS = DatasetFacts(num_images=100, num_classes=None, median_size=32)


def print_lines(config: dict[str, object]) -> None:
    """Print and log the same lines on each rank; rank 1 then exits at once with code 3.

    Ray ends rank 0 with it. So rank 1 prints its second half when rank 0 has printed all.
    """
    import logging
    import os
    import time
    from pathlib import Path

    from dasl_core.distributed import rank
    from workers.logs import log_to_stderr

    os.environ["DASL_LOG_FORMAT"] = str(config["log_format"])
    log_to_stderr(str(config["token"]), job="job_x", attempt=1, rank=rank())
    print(f"Ray is at {os.environ.get('RAY_ADDRESS')}")
    logging.getLogger("talk").warning("a record with %s", config["token"])
    printed, lines = Path(str(config["folder"])) / "printed", int(str(config["lines"]))
    for line in range(lines):
        while rank() == 1 and line == lines // 2 and not printed.exists():
            time.sleep(0.05)
        print(f"out rank {rank()} line {line}")
        print(f"err rank {rank()} line {line}", file=sys.stderr)
        print("what everybody says")
    print(f"last words of rank {rank()}", flush=True)
    if rank() == 0:
        printed.touch()
    else:
        os._exit(3)


if __name__ == "__main__":
    workers.rank.train_rank = print_lines
    resources = {"workers": 2, "cpus_per_worker": 1, "gpus_per_worker": 0}
    spec = resolve(JobSpec.model_validate({"dataset": "none", "resources": resources}), FACTS)
    start = AttemptStart(
        spec=spec.model_dump(mode="json"),
        dataset=WorkerDataset(
            id="ds", name="none", uri="", version=1, index_uri="", facts=FACTS.model_dump()
        ),
        evaluate_dataset=None,
        resume=None,
        dataset_roots=[],
        artifacts_uri=f"file://{sys.argv[1]}",
        heartbeat_seconds=2,
    )
    config: dict[str, object] = {
        "folder": sys.argv[1],
        "lines": sys.argv[2],
        "token": read_attempt_token(),
    }
    sys.exit(0 if run_ranks(start, config) is None else 1)
