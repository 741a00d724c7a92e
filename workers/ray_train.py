"""Ray Train's part of an attempt: `fit`, which runs in its own process.

Importing Ray Train takes seconds, so the driver only passes `fit` on, to a process that has already imported it:
see `workers.standby`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from service.object_store import StoreError, open_store, store_errors
from service.protocol import AttemptStart
from workers.scaling import scaling_options
from workers.standby import rank_environment

if TYPE_CHECKING:
    from ray.train import RunConfig

RankLoop = Callable[[dict[str, Any]], None]


def fit(loop: RankLoop, start: AttemptStart, config: dict[str, object]) -> Exception | None:
    """Run `loop` in all ranks of an attempt; return the error of Ray Train or of the store, or `None`."""
    from ray.train import ScalingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    from workers.process_group import ProcessGroupConfig
    from workers.trainer import LeanTrainer

    resources = start.resources()
    try:
        LeanTrainer(
            loop,
            train_loop_config=config,
            backend_config=ProcessGroupConfig("nccl" if resources.gpus_per_worker else "gloo"),
            scaling_config=ScalingConfig(**scaling_options(resources, start.excluded_nodes)),
            run_config=run_config(start.artifacts_uri),
        ).fit()
    except (StoreError, TrainingFailedError) as error:
        return error
    return None


def run_config(artifacts_uri: str) -> RunConfig:
    """Return Ray Train's settings for an attempt.

    Raises:
        StoreError: Ray's marker cannot be written to the artifact store.
    """
    import pyarrow.fs
    from ray.train import FailureConfig, LoggingConfig, RunConfig

    store, folder = open_store(artifacts_uri)
    config = RunConfig(
        name="ray-train",
        # All nodes share this folder, into which Ray only writes a marker. Through DASL's file system, because pyarrow
        # fails on a space or an umlaut in a URI, and has other settings for S3.
        storage_filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(store)),
        storage_path=folder,
        # A failure ends the attempt, because the dispatcher starts the next one.
        failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        # The warnings contain tracebacks of harmless events, and the ranks log their own errors.
        logging_config=LoggingConfig(log_level="ERROR"),
        worker_runtime_env=rank_environment(),
    )
    with store_errors(artifacts_uri):
        # Writes the marker now, because an error of Ray's controller would look like a crash.
        config.storage_context  # noqa: B018
    return config
