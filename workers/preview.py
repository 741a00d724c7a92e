"""Drawing of one preview: `python -m workers.preview --run R --preview PREV`.

It draws the first images of a training with their views, on one core, and uploads the pictures. Environment, token
and exit code are as for `workers.ingest`.
"""

import argparse
import logging
import os
import sys
import tempfile
import uuid
from pathlib import Path

import torch

from dasl_core import previews
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.transport import BUSY
from service.client.worker import WorkerClient
from service.object_store import StoreError
from service.protocol import UNDELIVERED_EXIT_CODE, FileEntry, PreviewStart
from workers.artifacts import UPLOAD_PAUSES, retried, upload
from workers.datasets import open_dataset
from workers.failures import storable
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.preview")


def draw(start: PreviewStart, folder: Path) -> list[Path]:
    """Draw a preview into a folder and return its files.

    Raises:
        ValueError: the spec cannot run on this data; the message says why.
        StoreError: the artifact store cannot be read.
    """
    index = open_dataset(start.dataset, start.readable(), folder)
    drawing = previews.Drawing(start.job_spec(), index, start.images, threads=1)
    return previews.write(drawing, folder / "files", version=start.dataset_version)


def upload_all(files: list[Path], uri: str) -> list[FileEntry]:
    """Copy files to the artifact store, each tried again twice."""

    def copy(file: Path) -> FileEntry:
        target = f"{uri}/{file.name}"
        return retried(lambda: upload(file, target), target, UPLOAD_PAUSES)

    return [copy(file) for file in files]


def main() -> int:
    """Draw the preview named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Drawing of one preview.")
    parser.add_argument("--run", required=True)
    parser.add_argument("--preview", required=True)
    arguments = parser.parse_args()
    url, token = os.environ["DASL_API_URL"], read_attempt_token()
    log_to_stderr(token, preview=arguments.preview)
    torch.set_num_threads(1)
    client = WorkerClient(url, token, run=arguments.run, patience=PATIENCE_SECONDS)
    try:
        start = client.preview_start()
        with tempfile.TemporaryDirectory(prefix="dasl-") as name:
            try:
                files = draw(start, Path(name))
            except StoreError:
                raise
            except ValueError as error:
                client.preview_failed(type(error).__name__, storable(str(error)))
                return 0
            # A superseded run may still write, so each process writes to a folder of its own.
            uri = f"{start.artifacts_uri}/{uuid.uuid4().hex}"
            entries = upload_all(files, uri)
        client.preview_succeeded(uri, entries)
    except StaleAttempt as error:
        logger.warning("this preview was superseded: %s", error)
    except (ConnectionFailed, ApiError) as error:
        if isinstance(error, ApiError) and error.status not in BUSY:
            raise
        logger.error("the preview could not be reported: %s", error)
        return UNDELIVERED_EXIT_CODE
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
