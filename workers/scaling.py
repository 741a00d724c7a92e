"""Workers that an attempt requests from Ray Train: their number, resources and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dasl_core.spec import ResolvedResources

_GPU_TYPE, _NODE_ID = "ray.io/accelerator-type", "ray.io/node-id"
_BYTES_PER_GB = 10**9


def scaling_options(resources: ResolvedResources, excluded_nodes: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of Ray Train's `ScalingConfig`.

    Args:
        excluded_nodes: ids of nodes without workers.
    """
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
