"""Decoding of one data set into the cache: `python -m workers.prepare --run R --preparation PREP`.

It decodes all images for trainings of the same image size, with all cores, into the cache of this node and, with
`DASL_SHARDS_URI`, of all nodes. After a kill it resumes. Environment, token and exit code are as for `workers.ingest`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from dasl_core.data.cache import cache_root
from dasl_core.data.canvases import Canvases
from dasl_core.train.preparing import check_cached
from service.client.worker import WorkerClient
from service.protocol import PreparationReport, PreparationResult, PreparationStart
from workers.datasets import open_dataset
from workers.failures import storable
from workers.heartbeats import Heartbeats
from workers.task_process import run_task


def prepare(start: PreparationStart, report: Callable[[int, int], None]) -> PreparationResult:
    """Decode the images, and return the content of the cache.

    Args:
        report: called with the number of images read, and the total.

    Raises:
        ValueError: they may not be read, or none can be cached; the message says why.
        StoreError: the artifact store cannot be read.
        StaleAttempt: the run was superseded, or the preparation was deleted.
    """
    with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
        index = open_dataset(start.dataset, start.readable(), Path(folder))
        canvases = Canvases(
            index,
            start.image_size,
            start.channels,
            cache=cache_root() / start.dataset.id,
            threads=1,  # for later reading
            form=start.image_cache,
            on_read=lambda images: report(images, len(index)),
        )
        try:
            check_cached(start.dataset.name, canvases)
            return PreparationResult(
                images=len(index),
                cached=canvases.num_cached,
                form=canvases.stored[0] if canvases.stored is not None else "raw",
                bytes=canvases.size,
                shared=canvases.is_shared,
                unreadable=len(canvases.unreadable),
                not_cached=None if canvases.not_cached is None else storable(canvases.not_cached),
            )
        finally:
            canvases.close()


def _run(client: WorkerClient, _: argparse.Namespace) -> None:
    start = client.task_start(PreparationStart)
    try:
        with Heartbeats(client, start.heartbeat_seconds) as report:
            result = prepare(start, report)
    except ValueError as error:
        client.task_failed(PreparationReport, "not-prepared", storable(str(error)))
        return
    client.task_succeeded(PreparationReport, result=result)


if __name__ == "__main__":
    sys.exit(run_task("preparation", PreparationReport, _run))
