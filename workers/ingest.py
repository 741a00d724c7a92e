"""Ingest of one data set: `python -m workers.ingest --run R --dataset DS`.

It reads the header of every image, decodes a sample, and reports which are usable. Headers that an earlier ingest has
read of images that did not change are not read again. Environment and token are as for `workers.driver`. The exit
code is 0 if the ingest was reported or superseded, `UNDELIVERED_EXIT_CODE` if the API did not answer, else 1.
"""

import argparse
import logging
import math
import os
import sys
import uuid
from typing import Any

from dasl_core.data.changes import count_changes
from dasl_core.data.ingest import Ingested, Previous, ingest
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.transport import BUSY
from service.client.worker import WorkerClient
from service.protocol import UNDELIVERED_EXIT_CODE
from workers.failures import storable
from workers.ingest_files import UnfinishedHeaders, load_previous, save_contact_sheet, save_results
from workers.logs import log_to_stderr
from workers.progress_reports import ProgressReports
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.ingest")


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
        # The API of version 0.1 has no heartbeats of ingests, whose runs have no id there.
        interval = start.heartbeat_seconds if arguments.run else math.inf
        # A superseded run may still write, so each process writes to files of its own.
        unfinished = UnfinishedHeaders(f"{start.artifacts_uri}/unfinished")
        previous = load_previous(start.previous_index_uri, unfinished)
        try:
            with ProgressReports(client, interval) as report:
                result = ingest(
                    start.uri,
                    options=start.source,
                    allowed=start.readable(),
                    on_progress=report,
                    previous=previous,
                    on_headers=unfinished.save,
                )
        except ValueError as error:  # the folder is missing or has no usable images
            client.dataset_finish(dataset, state="failed", error=storable(str(error)))
            return 0
        for warning in result.index.warnings():
            logger.warning("%s", warning)
        if result.is_unchanged:
            assert start.previous_index_uri is not None, "there is an index that it repeats"
            index_uri = start.previous_index_uri
            save_contact_sheet(result, index_uri)
        else:
            index_uri = save_results(result, f"{start.artifacts_uri}/{uuid.uuid4().hex}")
        client.dataset_finish(
            dataset,
            state="ready",
            facts=result.index.facts().model_dump(),
            report=_report(result, previous),
            index_uri=index_uri,
        )
        unfinished.remove()
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


def _report(result: Ingested, previous: Previous) -> dict[str, Any]:
    report = result.index.report()
    if result.contact_sheet is not None:
        report["contact_sheet"] = result.contact_sheet.report()
    if previous.index is not None:
        report["changes"] = count_changes(previous.index, result.index)
    return report


if __name__ == "__main__":
    sys.exit(main())
