"""Drawing of one preview: `python -m workers.preview --run R --preview PREV`.

It draws the first images of a training with their views, on one core, and uploads the files. Environment, token
and exit code are as for `workers.ingest`.
"""

import argparse
import sys
import tempfile
import uuid
from pathlib import Path

import torch

from dasl_core import previews
from service.client.worker import WorkerClient
from service.protocol import PreviewReport, PreviewStart
from workers.artifacts import UPLOAD_PAUSES, upload
from workers.datasets import open_dataset
from workers.failures import storable
from workers.task_process import run_task


def draw(start: PreviewStart, folder: Path) -> list[Path]:
    """Draw a preview into a folder and return its files.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        StoreError: the artifact store cannot be read.
    """
    index = open_dataset(start.dataset, start.readable(), folder)
    drawing = previews.Drawing(start.job_spec(), index, start.images, threads=1)
    return previews.write(drawing, folder / "files", version=start.dataset_version)


def _run(client: WorkerClient, _: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    start = client.task_start(PreviewStart)
    with tempfile.TemporaryDirectory(prefix="dasl-") as name:
        try:
            files = draw(start, Path(name))
        except ValueError as error:
            client.task_failed(PreviewReport, type(error).__name__, storable(str(error)))
            return
        # A superseded run may still write, so each process has its own folder.
        uri = f"{start.artifacts_uri}/{uuid.uuid4().hex}"
        entries = [upload(file, f"{uri}/{file.name}", pauses=UPLOAD_PAUSES) for file in files]
    client.task_succeeded(PreviewReport, uri=uri, files=entries)


if __name__ == "__main__":
    sys.exit(run_task("preview", PreviewReport, _run))
