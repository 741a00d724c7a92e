"""Process that does the work of a run of a finished model on a GPU: ``python -m workers.model_run_on_gpu``."""

import argparse
import sys

from service.client.worker import WorkerClient
from service.protocol import ModelRunReport, ModelRunStart
from workers.model_run import carry_out
from workers.task_process import run_task


def _run(client: WorkerClient, _: argparse.Namespace) -> None:
    # Idempotent: the process on Ray's head has started the run.
    carry_out(client, client.task_start(ModelRunStart), use_gpu=True)


if __name__ == "__main__":
    sys.exit(run_task("model-run", ModelRunReport, _run))
