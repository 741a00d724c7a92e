"""Ingest of one data set: `python -m workers.ingest --run R --dataset DS`.

It reads the header of every image, decodes a sample, and reports the usable images. Stored headers of unchanged
images are not read again. Environment and token are as for `workers.driver`. The exit
code is 0 if the ingest was reported or superseded, `UNDELIVERED_EXIT_CODE` if the API did not answer, else 1.
"""

import argparse
import logging
import sys
import uuid
from typing import Any

from dasl_core.data.ingest import Ingested, Previous, ingest
from service.client.worker import WorkerClient
from service.protocol import IngestReport, IngestStart
from workers.failures import storable
from workers.heartbeats import Heartbeats
from workers.ingest_files import UnfinishedHeaders, load_previous, save_contact_sheet, save_results
from workers.task_process import run_task

logger = logging.getLogger("workers.ingest")


def _run(client: WorkerClient, options: argparse.Namespace) -> None:
    start = client.task_start(IngestStart)
    # A superseded run may still write, so each process has its own files.
    unfinished = UnfinishedHeaders(f"{start.artifacts_uri}/unfinished")
    previous = load_previous(start.previous_index_uri, unfinished)
    try:
        with Heartbeats(client, start.heartbeat_seconds) as report:
            result = ingest(
                start.uri,
                options=start.source,
                allowed=start.readable(),
                on_progress=report,
                previous=previous,
                on_headers=unfinished.save,
            )
    except ValueError as error:  # the folder is missing or has no usable images
        client.task_failed(IngestReport, "ingest-failed", storable(str(error)))
        return
    for warning in result.index.warnings:
        logger.warning("%s", warning)
    if result.is_unchanged:
        assert start.previous_index_uri is not None, "there is an index that it repeats"
        index_uri = start.previous_index_uri
        save_contact_sheet(result, index_uri)
    else:
        index_uri = save_results(result, f"{start.artifacts_uri}/{uuid.uuid4().hex}")
    client.task_succeeded(
        IngestReport,
        facts=result.index.facts().model_dump(),
        report=_report(result, previous),
        index_uri=index_uri,
    )
    unfinished.remove()


def _report(result: Ingested, previous: Previous) -> dict[str, Any]:
    report = result.index.report()
    if result.contact_sheet is not None:
        report["contact_sheet"] = result.contact_sheet.report()
    if previous.index is not None:
        report["changes"] = result.index.changes_since(previous.index)
    return report


def main() -> int:
    """Ingest the data set named on the command line and return the exit code."""
    return run_task("dataset", IngestReport, _run)


if __name__ == "__main__":
    sys.exit(main())
