"""Collectives with which W processes compute the same gradient as one process.

DDP averages the parameter gradients of the ranks. A term that every rank computes on gathered
embeddings therefore needs a gather whose backward sums the ranks' gradients: W ranks send W
contributions, DDP divides by W, and the gradient of the global loss remains. Slicing out this rank's
part without the sum, as is often done, leaves 1/W of it (docs/distributed.md has the table).

A `group` is the process group whose ranks hold the shares of a batch. With None there is no
communication: this process holds the whole batch, also if a process group exists.
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


def all_ranks() -> dist.ProcessGroup | None:
    """The group of all ranks; None without a process group."""
    return dist.group.WORLD if dist.is_initialized() else None


def group_size(group: dist.ProcessGroup | None) -> int:
    """Number of the ranks of a group; 1 for None.

    Raises:
        ValueError: this process is not in the group.
    """
    if group is None:
        return 1
    size = dist.get_world_size(group)
    if size < 1:
        raise ValueError("group must contain this process; pass None to communicate with no other")
    return size


def group_rank(group: dist.ProcessGroup | None) -> int:
    """This process's rank in a group; 0 for None."""
    return 0 if group is None else dist.get_rank(group)


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ranks' tensors along dim 0, in rank order; the backward sums over ranks.

    Args:
        tensor: (B, ...), the same shape on all ranks of `group`.

    Returns:
        (W * B, ...), the same on all ranks. The tensor itself when there is one process.
    """
    if group_size(group) == 1:
        return tensor
    gathered: Tensor = _Gather.apply(tensor, group)
    return gathered


def gather_views(embeddings: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Gather (V, B, h) embeddings of V views to (V, W * B, h), views first and samples in order.

    The order equals that of one process holding the global batch, whose ranks take contiguous
    shares of it.
    """
    return gather(embeddings.transpose(0, 1), group).transpose(0, 1)


def rank_share(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's share of the values of a global batch, which is divided equally along dim 0."""
    return values.chunk(group_size(group))[group_rank(group)]


def all_reduce_sum(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over ranks; the backward sums the ranks' gradients too."""
    if group_size(group) == 1:
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor, group)
    return total


def mean_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Mean over ranks, for metrics only: no gradient flows."""
    tensor = tensor.detach().clone()
    if group_size(group) > 1:
        dist.all_reduce(tensor, group=group)
        tensor /= group_size(group)
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
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(group_size(group))]
        dist.all_gather(parts, tensor, group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total.chunk(group_size(ctx.group))[group_rank(ctx.group)], None


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
