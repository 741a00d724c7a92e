"""Collectives with which W processes compute the same gradient as one process.

DDP averages the parameter gradients of the ranks. A term that every rank computes on gathered
embeddings therefore needs a gather whose backward sums the ranks' gradients: W ranks send W
contributions, DDP divides by W, and the gradient of the global loss remains. Slicing out this rank's
part without the sum, as is often done, leaves 1/W of it (docs/distributed.md has the table).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def gather(tensor: Tensor) -> Tensor:
    """Concatenate the ranks' tensors along dim 0, in rank order; the backward sums over ranks.

    Args:
        tensor: (B, ...), the same shape on all ranks.

    Returns:
        (W * B, ...), the same on all ranks. The tensor itself when there is one process.
    """
    if world_size() == 1:
        return tensor
    gathered: Tensor = _Gather.apply(tensor)
    return gathered


def gather_views(embeddings: Tensor) -> Tensor:
    """Gather (V, B, h) embeddings of V views to (V, W * B, h), views first and samples in order.

    The order equals that of one process holding the global batch, whose ranks take contiguous
    shares of it.
    """
    return gather(embeddings.transpose(0, 1)).transpose(0, 1)


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum over ranks; the backward sums the ranks' gradients too."""
    if world_size() == 1:
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor)
    return total


def mean_over_ranks(tensor: Tensor) -> Tensor:
    """Mean over ranks, for metrics only: no gradient flows."""
    tensor = tensor.detach().clone()
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= world_size()
    return tensor


def gather_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather the ranks' values, in rank order, on every rank. They are pickled.

    Args:
        group: of all ranks; None with a single process.
    """
    if group is None:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def gather_objects_to_rank0(value: Any, group: dist.ProcessGroup | None) -> list[Any] | None:
    """Gather the ranks' values, in rank order, on rank 0; None on the others. They are pickled."""
    if group is None:
        return [value]
    values: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, values, dst=0, group=group)
    return values


def broadcast_int(value: int, group: dist.ProcessGroup | None) -> int:
    """Broadcast rank 0's value to every rank.

    Args:
        group: of all ranks; None with a single process.
    """
    if group is None:
        return value
    shared = torch.tensor(value)
    dist.broadcast(shared, 0, group=group)
    return int(shared)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(world_size())[rank()]


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
