"""Ranks of a standalone run: processes of torchrun, or this process alone."""

import gc
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from dasl_core.distributed import rank
from dasl_core.machine import keep_freed_memory, usable_cores
from dasl_core.spec import JobSpec

# Rank 0 may decode millions of images while the others wait.
_RANK_0_TIMEOUT = timedelta(days=7)

T = TypeVar("T")


def with_local_resources(spec: JobSpec) -> JobSpec:
    """Replace the spec's resources by those of this machine.

    These are the launcher's number of ranks, one GPU per rank if available, and equal shares of the CPU cores.

    Raises:
        ValidationError: the number of ranks does not divide the batch.
    """
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    resources = spec.resources.model_copy(
        update={
            "workers": int(os.environ.get("WORLD_SIZE", "1")),
            "gpus_per_worker": int(torch.cuda.is_available()),
            "cpus_per_worker": max(1, usable_cores() // local_ranks),
        }
    )
    changed = spec.model_copy(update={"resources": resources})
    return JobSpec.model_validate(changed.model_dump(exclude_unset=True))


def join_ranks(spec: JobSpec) -> torch.device:
    """Join the process group of several ranks, if any; return this rank's device."""
    device = torch.device("cpu")
    if spec.resources.gpus_per_worker:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    if spec.resources.workers > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def on_rank_0(function: Callable[[], T]) -> T:
    """Call a function on rank 0 and return its result on every rank. The result is pickled.

    Raises:
        ValueError: on every rank, if the function raised a ValueError or an OSError on rank 0.
    """
    if not dist.is_initialized():
        return function()
    # The default group has a shorter timeout, and NCCL would need a GPU for the pickled result.
    group = dist.new_group(backend="gloo", timeout=_RANK_0_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group of all"
    shared: list[T | str | None] = [None, None]
    if rank() == 0:
        try:
            shared = [function(), None]
        except (ValueError, OSError) as error:
            shared = [None, str(error)]
    dist.broadcast_object_list(shared, group=group)
    result, problem = shared
    if problem is not None:
        raise ValueError(problem)
    return result  # type: ignore[return-value]


def leave_ranks() -> None:
    """Leave the process group, and end its threads."""
    if not dist.is_initialized():
        return
    dist.destroy_process_group()
    # Reference cycles of a run keep its groups and threads alive. A thread that frees a tensor during interpreter exit
    # aborts the process, and torchrun then ends the other ranks.
    gc.collect()
