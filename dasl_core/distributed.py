"""Collectives with which W processes compute the same gradient as one process.

DDP averages the parameter gradients of the ranks. A term that every rank computes on gathered
embeddings therefore needs a gather whose backward sums the ranks' gradients: W ranks send W
contributions, DDP divides by W, and the gradient of the global loss remains. Slicing out this rank's
part without the sum, as is often done, leaves 1/W of it (docs/distributed.md has the table).

A `group` is the process group whose ranks hold the shares of a batch. None means no communication: this
process holds the whole batch, even if a process group exists.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Span = Callable[[torch.device], AbstractContextManager[None]]
"""Creates the context of a collective, given the device of the exchanged tensor."""

CPU = torch.device("cpu")

# The last one counts. Not a context variable, because the backward of a collective may run in an autograd thread.
_spans: list[Span] = [lambda device: nullcontext()]


@contextmanager
def collectives_timed(span: Span) -> Iterator[None]:
    """Context manager that runs the collectives of this module, in any thread, in a context of `span`."""
    _spans.append(span)
    try:
        yield
    finally:
        _spans.pop()


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def all_ranks() -> dist.ProcessGroup | None:
    """Return the group of all ranks; None without a process group."""
    return dist.group.WORLD if dist.is_initialized() else None


def group_size(group: dist.ProcessGroup | None) -> int:
    """Return the number of ranks in a group, 1 for None; a ValueError if this process is not in it."""
    if group is None:
        return 1
    size = dist.get_world_size(group)
    if size < 1:
        raise ValueError("group must contain this process; pass None to communicate with no other")
    return size


def group_rank(group: dist.ProcessGroup | None) -> int:
    """Return this process's rank in a group; 0 for None."""
    return 0 if group is None else dist.get_rank(group)


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ranks' tensors along dim 0, in rank order; the backward sums over ranks.

    Args:
        tensor: (B, ...), the same shape on all ranks of `group`.

    Returns:
        (W * B, ...), the same on all ranks; the tensor itself with a single process.
    """
    if group_size(group) == 1:
        return tensor
    gathered: Tensor = _Gather.apply(tensor, group)
    return gathered


def gather_views(embeddings: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Gather (V, B, h) embeddings of V views to (V, W * B, h), views first and samples in order.

    The order is that of a single process with the global batch, of which ranks have contiguous shares.
    """
    return gather(embeddings.transpose(0, 1), group).transpose(0, 1)


def rank_share(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return this rank's share of the values of a global batch, divided equally along dim 0."""
    return values.chunk(group_size(group))[group_rank(group)]


def all_reduce_sum(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over ranks; the backward sums the ranks' gradients too."""
    if group_size(group) == 1:
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor, group)
    return total


def mean_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Mean over ranks, without gradient, for metrics."""
    tensor = tensor.detach().clone()
    if group_size(group) > 1:
        _sum(tensor, group)
        tensor /= group_size(group)
    return tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that FSDP has sharded, which all ranks must do together; return any other one itself."""
    if not is_sharded(tensor):
        return tensor
    with _spans[-1](tensor.device):
        return cast("DTensor", tensor).full_tensor()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that FSDP has sharded, sharing its memory; any other one itself."""
    return cast("DTensor", tensor).to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether FSDP has sharded a tensor: it is a DTensor, whose import takes half as long as torch's."""
    return hasattr(tensor, "full_tensor")


def gather_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather the ranks' values, in rank order, on every rank of a group of all; None: a single process.

    They are tensors, numbers, strings, bytes and containers of them. Whoever reaches the group's port cannot send code.
    """
    if group is None:
        return [value]
    packed, sizes = _pack(value, group)
    parts = [torch.empty_like(packed) for _ in sizes]
    with _spans[-1](CPU):
        dist.all_gather(parts, packed, group=group)
    return _unpack(parts, sizes)


def gather_objects_to_rank0(value: Any, group: dist.ProcessGroup | None) -> list[Any] | None:
    """Gather the ranks' values, as `gather_objects`, on rank 0; None on the others."""
    if group is None:
        return [value]
    packed, sizes = _pack(value, group)
    parts = [torch.empty_like(packed) for _ in sizes] if rank() == 0 else None
    with _spans[-1](CPU):
        dist.gather(packed, parts, dst=0, group=group)
    return None if parts is None else _unpack(parts, sizes)


def _pack(value: Any, group: dist.ProcessGroup) -> tuple[Tensor, list[int]]:
    """Return a value as bytes, padded to the size of the largest rank's, and the size of each rank's."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    sizes = torch.zeros(world_size(), dtype=torch.int64)
    sizes[rank()] = buffer.tell()
    with _spans[-1](CPU):
        dist.all_reduce(sizes, group=group)
    padded = bytearray(buffer.getbuffer()).ljust(int(sizes.max()))
    return torch.frombuffer(padded, dtype=torch.uint8), sizes.tolist()


def _unpack(parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Any]:
    contents = [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]
    return [torch.load(io.BytesIO(content), weights_only=True) for content in contents]


def broadcast_int(value: int, group: dist.ProcessGroup | None) -> int:
    """Broadcast rank 0's value to every rank of a group of all; None: a single process."""
    if group is None:
        return value
    shared = torch.tensor(value)
    with _spans[-1](CPU):
        dist.broadcast(shared, 0, group=group)
    return int(shared)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(group_size(group))]
        with _spans[-1](tensor.device):
            dist.all_gather(parts, tensor, group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        scatters = gradients[0].is_cuda and "nccl" in dist.get_backend(ctx.group)
        share_of_sum = scattered_sum if scatters else reduced_sum
        return share_of_sum(gradients[0], ctx.group), None


def scattered_sum(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's share, along dim 0, of the sum over ranks by a reduce-scatter.

    Used between GPUs; CPUs use `reduced_sum`, whose order of addition keeps their losses bit for bit.
    """
    gradient = gradient.contiguous()
    share = torch.empty_like(gradient.chunk(group_size(group))[0])
    with _spans[-1](gradient.device):
        dist.reduce_scatter_tensor(share, gradient, group=group)
    return share


def reduced_sum(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Like `scattered_sum`, by a sum of all shares on every rank."""
    total = gradient.clone(memory_format=torch.contiguous_format)
    return rank_share(_sum(total, group), group)


def _sum(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over ranks, in place."""
    with _spans[-1](tensor.device):
        dist.all_reduce(tensor, group=group)
    return tensor


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _sum(tensor.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0].clone(memory_format=torch.contiguous_format), ctx.group), None
