"""Ingest of one data set: `python -m workers.ingest --run R --dataset DS`.

It reads every image once and reports which are usable. Environment and token are as for `workers.driver`.
"""

import argparse
import logging
import os
import sys
import tempfile
import uuid
from pathlib import Path

from dasl_core.data.ingest import ingest_folder
from dasl_core.spec.locations import ReadableFolders, local_path
from service.client import StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.worker import WorkerClient
from workers.artifacts import upload
from workers.failures import storable
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.ingest")

INDEX = "index.json.gz"


def main() -> int:
    """Ingest the data set named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Ingest of one data set.")
    parser.add_argument("--run", help="id of the run; a 0.1 dispatcher passes none")
    parser.add_argument("--dataset", required=True)
    arguments = parser.parse_args()
    dataset = arguments.dataset
    url, token = os.environ["DASL_API_URL"], read_attempt_token()
    log_to_stderr(token, dataset=dataset)
    client = WorkerClient(url, token, run=arguments.run, patience=PATIENCE_SECONDS)
    try:
        start = client.dataset_start(dataset)
        readable = ReadableFolders(start.dataset_roots, start.excluded_folders)
        try:
            index = ingest_folder(local_path(start.uri), allowed=readable)
        except ValueError as error:  # the folder is missing or has no usable images
            client.dataset_finish(dataset, state="failed", error=storable(str(error)))
            return 0
        for warning in index.warnings():
            logger.warning("%s", warning)
        with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
            file = Path(folder) / INDEX
            index.save(file)
            # A superseded run may still write, so each process writes to a folder of its own.
            index_uri = f"{start.artifacts_uri}/{uuid.uuid4().hex}/{INDEX}"
            upload(file, index_uri)
        client.dataset_finish(
            dataset,
            state="ready",
            facts=index.facts().model_dump(),
            report=index.report(),
            index_uri=index_uri,
        )
    except StaleAttempt as error:
        logger.warning("this ingest was superseded: %s", error)
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
