"""What every rank of an attempt runs, inside Ray Train.

The driver and Ray's controller import this module too, only to pass `train_rank` on, one after the
other before any rank starts. What takes seconds to import is therefore imported in the functions.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasl_core.data.index import DatasetIndex
    from service.client.worker import WorkerDataset


def train_rank(config: dict[str, Any]) -> None:
    """One rank of an attempt. `config`: job, attempt, url, token, and the API's `start` answer."""
    import ray.train.torch

    from dasl_core.distributed import rank
    from dasl_core.train.engine import RunFiles, pretrain
    from service.client.worker import AttemptStart, WorkerClient
    from workers.artifacts import download
    from workers.logs import log_to_stderr
    from workers.reporter import HomeReporter

    log_to_stderr()
    start = AttemptStart.model_validate(config["start"])
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dasl-")))
        resume, branch = None, False
        if start.resume is not None:
            resume, branch = scratch / "resume", start.resume.branch
            resume.mkdir()
            download(start.resume.uri, start.resume.files, resume)
        client = reporter = None
        if rank() == 0:
            client = WorkerClient(config["url"], config["token"], config["job"], config["attempt"])
            stack.callback(client.close)
            reporter = stack.enter_context(
                HomeReporter(client, start.artifacts_uri, start.heartbeat_seconds)
            )
        cache = os.environ.get("DASL_CACHE_DIR") or os.path.expanduser("~/.cache/dasl")
        outcome = pretrain(
            start.spec,
            _index(start.dataset, scratch),
            reporter,
            RunFiles(Path(cache) / start.dataset.id, scratch, resume, branch),
            evaluate_on=(
                _index(start.evaluate_dataset, scratch) if start.evaluate_dataset else None
            ),
            device=ray.train.torch.get_device(),
            threads=start.spec.resources.cpus_per_worker,
        )
        if client is not None and reporter is not None:
            reporter.flush()
            client.finish(outcome)


def _index(dataset: WorkerDataset, scratch: Path) -> DatasetIndex:
    from dasl_core.data.index import DatasetIndex
    from workers.artifacts import fetch, local_path

    index = DatasetIndex.load(fetch(dataset.index_uri, scratch / f"{dataset.id}.json.gz"))
    # Ingest follows links to the real folder; what must not happen is another folder's index.
    if index.root.resolve() != local_path(dataset.uri).resolve():
        raise ValueError(f"the index of {dataset.name} belongs to {index.root}, not {dataset.uri}")
    return index
