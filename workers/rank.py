"""One rank of a training attempt, inside Ray Train.

The driver and Ray's controller also import this module, only to pass on `train_rank`, so modules that take seconds to
import are imported in the functions.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasl_core.spec.locations import ReadableFolders
    from dasl_core.track.reporter import TrackingReporter
    from dasl_core.vocabulary import TrainingOutcome
    from service.client.worker import WorkerClient
    from service.protocol import AttemptStart
    from workers.reporter import ApiReporter

logger = logging.getLogger(__name__)


def train_rank(config: dict[str, Any]) -> None:
    """Train as one rank of an attempt.

    Args:
        config: run, job, attempt, url, token, log_format, and the API's answer to `start`.
    """
    import ray.train.torch
    import torch

    from dasl_core.data.cache import cache_root
    from dasl_core.distributed import rank, world_size
    from dasl_core.machine import keep_freed_memory
    from dasl_core.train.build import RunFiles, pretrain
    from dasl_core.train.reporter import NullReporter
    from dasl_core.train.serialization import STATE_FILES
    from service.client.worker import WorkerClient
    from service.protocol import AttemptStart
    from workers import placement
    from workers.datasets import open_dataset
    from workers.logs import log_to_stderr
    from workers.ray_logs import remove_local_logs
    from workers.reporter import ApiReporter
    from workers.scratch import SubmissionFolder, scratch_root

    # A standby process lacks the variables of the attempt.
    os.environ["DASL_LOG_FORMAT"] = config["log_format"]
    log_to_stderr(config["token"], job=config["job"], attempt=config["attempt"], rank=rank())
    device, node = ray.train.torch.get_device(), ray.util.get_node_ip_address()
    logger.info("rank %d of %d is on %s, %s", rank(), world_size(), node, device)
    remove_local_logs()
    start = AttemptStart.model_validate(config["start"])
    spec = start.job_spec()
    readable = start.readable()
    if start.resume is None:  # a checkpoint contains all weights
        _check_weights(spec.backbone.pretrained, readable)
    with ExitStack() as stack:
        client = reporter = None
        if rank() == 0:
            client = WorkerClient(config["url"], config["token"], config["run"])
            stack.callback(client.close)
            reporter = stack.enter_context(
                ApiReporter(
                    client,
                    config["job"],
                    config["attempt"],
                    start.artifacts_uri,
                    start.heartbeat_seconds,
                )
            )
            reporter.event("placement", *placement.describe(config["attempt"], config["driver"]))
        # After the report, so that after a GPU failure the next attempt knows which nodes to avoid.
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            keep_freed_memory()
        submission = config["run"] or f"{config['job']}-{config['attempt']}"
        shared = stack.enter_context(SubmissionFolder(scratch_root(), submission))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared.path)))
        resume, branch = None, False
        if start.resume is not None:
            needed = [file for file in start.resume.files if file.name in STATE_FILES]
            on_chunk = reporter.keepalive if reporter is not None else None
            resume = shared.download(start.resume.uri, needed, on_chunk)
            branch = start.resume.branch
        files = RunFiles(
            cache=cache_root() / start.dataset.id,
            evaluate_cache=(
                cache_root() / start.evaluate_dataset.id if start.evaluate_dataset else None
            ),
            scratch=scratch,
            resume=resume,
            branch=branch,
        )
        # Exited before the reports are flushed, because trackers also report.
        with ExitStack() as tracking:
            tracked = None
            if reporter is not None:
                tracked = tracking.enter_context(_tracking(reporter, config, start, scratch))
            outcome = pretrain(
                spec,
                open_dataset(start.dataset, readable, scratch),
                tracked or NullReporter(),
                files,
                evaluate_on=(
                    open_dataset(start.evaluate_dataset, readable, scratch)
                    if start.evaluate_dataset
                    else None
                ),
                device=device,
                threads=start.resources().cpus_per_worker,
            )
            if tracked is not None:
                tracked.ended(outcome)
        if client is not None and reporter is not None:
            reporter.flush()
            report_end(client, outcome)


def _tracking(
    reporter: ApiReporter, config: dict[str, Any], start: AttemptStart, scratch: Path
) -> TrackingReporter:
    """Return the reporter for rank 0, which passes metrics on to the trackers of the spec."""
    from dasl_core.track.reporter import TrackingReporter
    from dasl_core.track.tracker import TrackedRun
    from service.client import StaleAttempt

    run = TrackedRun(
        id=config["job"],
        attempt=config["attempt"],
        spec=start.job_spec(),
        resume_step=start.resume.step if start.resume is not None else None,
        folder=scratch,
        publish=reporter.artifact,
        url=job_page(config["url"], config["job"]),
        hosts=start.tracking_hosts,
    )
    return TrackingReporter(reporter, run, superseded=(StaleAttempt,))


def job_page(url: str, job: str) -> str:
    """Return the address of a job's page."""
    return f"{url.rstrip('/')}/#/jobs/{job}"


def report_end(client: WorkerClient, outcome: TrainingOutcome) -> None:
    """Report the end of a run whose final checkpoint is registered.

    Raises:
        ReportsUndelivered: the API does not answer or fails, which must not fail the training.
    """
    from service.client import ApiError, ConnectionFailed
    from workers.report_queue import ReportsUndelivered
    from workers.settings import PATIENCE_SECONDS

    try:
        client.finish(outcome, patience=PATIENCE_SECONDS)
    except (ApiError, ConnectionFailed) as error:
        if isinstance(error, ApiError) and error.status < 500:
            raise
        raise ReportsUndelivered(f"the end of the run was not reported: {error}") from error


def _check_weights(pretrained: str | None, readable: ReadableFolders) -> None:
    """Raise a ValueError if a path of the pretrained weights, or its target, may not or cannot be read."""
    from dasl_core.spec.locations import OUTSIDE, local_path

    if pretrained is None:
        return
    path = local_path(pretrained)
    try:
        # `all` stops at the first forbidden path, so the manifest is checked before it is read.
        allowed = all(readable.allow(file) for file in _weight_paths(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"backbone.pretrained: {path} cannot be read: {error}") from error
    if not allowed:
        raise ValueError(f"backbone.pretrained: {path} {OUTSIDE}")


def _weight_paths(path: Path) -> Iterator[Path]:
    """Yield every path that may be opened to load weights from a file or a checkpoint folder."""
    from dasl_core.manifest import MANIFEST, read_digests
    from dasl_core.spec.locations import CHECKPOINT_MODEL, CHECKPOINT_WEIGHTS
    from dasl_core.spec.normalization import describing_files

    yield from (path, path / CHECKPOINT_WEIGHTS, path / CHECKPOINT_MODEL, path / MANIFEST)
    yield from describing_files(path)
    if (path / MANIFEST).is_file():
        yield from (path / name for name in read_digests(path))
