"""Ray Train's part of an attempt: `Controller`, which runs in its own process.

Importing Ray Train takes seconds, so the driver only starts it, in a process that has already imported it: see
`workers.standby`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dasl_core.spec import ResolvedResources
from service.object_store import StoreError, open_store, store_errors
from service.protocol import AttemptStart
from workers.standby import RANK_VARIABLES

if TYPE_CHECKING:
    from ray.train import RunConfig

RankLoop = Callable[[dict[str, Any]], None]

_GPU_TYPE, _NODE_ID = "ray.io/accelerator-type", "ray.io/node-id"
_BYTES_PER_GB = 10**9


class Controller:
    """An actor that starts the ranks of an attempt and waits for them.

    Ray Train's controller runs in it, which a task could not: Ray passes the handle of its actor to the ranks.
    """

    def fit(
        self, loop: RankLoop, start: AttemptStart, config: dict[str, object]
    ) -> Exception | None:
        """Run `loop` in all ranks; return the error of Ray Train or of the store, or `None`."""
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
    """Return Ray Train's settings for an attempt; a StoreError if Ray's marker cannot be written to the store."""
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
        worker_runtime_env={"env_vars": RANK_VARIABLES},
    )
    with store_errors(artifacts_uri):
        # Writes the marker now, because an error of Ray's controller would look like a crash.
        config.storage_context  # noqa: B018
    return config


def scaling_options(resources: ResolvedResources, excluded_nodes: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of Ray Train's `ScalingConfig`, which excludes nodes by their ids."""
    per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        per_worker["GPU"] = resources.gpus_per_worker
    if resources.memory_gb_per_worker is not None:
        per_worker["memory"] = int(resources.memory_gb_per_worker * _BYTES_PER_GB)
    labels: dict[str, str] = {}
    if excluded_nodes:
        labels[_NODE_ID] = f"!in({','.join(excluded_nodes)})"
    labels |= resources.node_labels
    if resources.gpu_type is not None:
        labels[_GPU_TYPE] = resources.gpu_type
    return {
        "num_workers": resources.workers,
        "use_gpu": bool(resources.gpus_per_worker),
        "resources_per_worker": per_worker,
        "placement_strategy": "STRICT_PACK" if resources.same_node else "PACK",
        "label_selector": labels or None,
    }
