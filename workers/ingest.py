"""Ingest of one data set: `python -m workers.ingest --run R --dataset DS`.

It reads the header of every image, decodes a sample, and reports which are usable. Environment and token are as for `workers.driver`. The exit
code is 0 if the ingest was reported or superseded, `UNDELIVERED_EXIT_CODE` if the API did not answer, else 1.
"""

import argparse
import logging
import math
import os
import sys
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Self

from dasl_core.data.ingest import ingest_folder
from dasl_core.spec.locations import ReadableFolders
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.transport import BUSY
from service.client.worker import WorkerClient
from service.protocol import UNDELIVERED_EXIT_CODE
from workers.artifacts import retried, upload
from workers.failures import storable
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.ingest")

INDEX = "index.safetensors"
# Pauses in seconds before a failed upload of the index is retried: reading the images may have taken hours. The
# dispatcher does not count this time as a standstill, because no progress is reported any more.
INDEX_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)


class ProgressReports:
    """Sends the progress of an ingest with its heartbeats, from a thread of its own.

    Args:
        interval: seconds between two of them.
    """

    def __init__(self, client: WorkerClient, interval: float) -> None:
        self._client, self._interval = client, interval
        self._decoded = self._total = 0
        self._stale: StaleAttempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="heartbeats", daemon=True)

    def __call__(self, decoded: int, total: int) -> None:
        """Note the progress for the next heartbeat.

        Raises:
            StaleAttempt: the API refused a heartbeat because the run was superseded.
        """
        if self._stale is not None:
            raise self._stale
        self._decoded, self._total = decoded, total

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send_all(self) -> None:
        while not self._ended.wait(min(self._interval, threading.TIMEOUT_MAX)):
            progress = {"images_read": self._decoded, "images_total": self._total}
            try:
                self._client.heartbeat(progress, patience=0)
            except StaleAttempt as error:
                self._stale = error
                return
            except ConnectionFailed as error:
                logger.info("a heartbeat was not delivered: %s", error)
            except ApiError as error:
                logger.warning("a heartbeat was refused: %s", error)
                if error.status == 422:  # the API of version 0.1 accepts no progress
                    return


def upload_index(file: Path, uri: str) -> None:
    """Copy an index to the artifact store, which may be away for five minutes.

    Raises:
        OSError: it was away for longer, or its disk is full; the message names the setting.
    """
    try:
        retried(lambda: upload(file, uri), uri, INDEX_PAUSES)
    except OSError as error:
        message = f"The artifact store (DASL_ARTIFACTS_URI) does not take the index: {error}"
        raise OSError(message) from error


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
        readable = ReadableFolders(
            start.dataset_roots,
            start.excluded_folders,
            uris=start.dataset_uris,
            excluded_uris=start.excluded_uris,
        )
        # The API of version 0.1 has no heartbeats of ingests, whose runs have no id there.
        interval = start.heartbeat_seconds if arguments.run else math.inf
        try:
            with ProgressReports(client, interval) as report:
                index = ingest_folder(
                    start.uri, options=start.source, allowed=readable, on_progress=report
                )
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
            upload_index(file, index_uri)
        client.dataset_finish(
            dataset,
            state="ready",
            facts=index.facts().model_dump(),
            report=index.report(),
            index_uri=index_uri,
        )
    except StaleAttempt as error:
        logger.warning("this ingest was superseded: %s", error)
    except (ConnectionFailed, ApiError) as error:
        if isinstance(error, ApiError) and error.status not in BUSY:
            raise
        logger.error("the ingest could not be reported: %s", error)
        return UNDELIVERED_EXIT_CODE
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
