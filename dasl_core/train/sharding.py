"""Sharded training with FSDP2: a rank keeps a part of each weight, and of its gradient and optimizer state.

A block of a backbone, and a layer that a loss calls, are gathered while they compute; all other weights are gathered
for a whole forward or backward pass. An EMA teacher is sharded like the student, so that its update is local. Outside
of `ShardedMethod`'s own calls, parameters are DTensors of this rank's parts.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dasl_core.distributed import all_ranks, rank, whole_tensor, world_size
from dasl_core.methods import Method
from dasl_core.models.heads import UnitLinear
from dasl_core.spec import ResolvedTrain

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class ShardedMethod(nn.Module):
    """A method whose weights are sharded over all ranks, which must make the same calls.

    Gradients are averaged over ranks, and the sum of several backward passes is that of their gradients.
    """

    def __init__(self, method: Method, device: torch.device) -> None:
        """Shard the weights of a method, in place. They are the same on every rank."""
        super().__init__()
        self.method = method
        self._blueprint = (_without_weights(method),)  # in a tuple: it is no submodule
        mesh = DeviceMesh.from_group(all_ranks(), device.type)  # type: ignore[arg-type]  # None: no group
        for network in (method.backbone, *method.teachers()):
            for block in cast(nn.Sequential, network.blocks):
                fully_shard(block, mesh=mesh)
        for layer in method.modules():
            if isinstance(layer, UnitLinear):
                fully_shard(layer, mesh=mesh)
        # The outputs are views, which no loss changes in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        # By default, the root would keep weights from before an update for the next forward pass.
        fully_shard(self, mesh=mesh, reshard_after_forward=True)

    def forward(self, compute: Callable[[], T]) -> T:
        """Call a function that computes with the method; FSDP would copy tensor arguments to the device."""
        return compute()

    @torch.no_grad()
    def whole(self, module: M, *, on_rank_0: bool = False) -> M:
        """Return a copy of the method, or of a part of it, with whole weights. All ranks must call this.

        Args:
            on_rank_0: copy to rank 0's CPU; the other ranks get no weights.
        """
        name = next(name for name, part in self.method.named_modules() if part is module)
        blueprint = self._blueprint[0].get_submodule(name)
        copies: dict[int, object] = {}
        for empty, tensor in zip(_tensors(blueprint), _tensors(module), strict=True):
            value = whole_tensor(tensor.detach())
            if on_rank_0:
                value = value.to("cpu", copy=True) if rank() == 0 else empty.detach()
            is_parameter = isinstance(tensor, nn.Parameter)
            copies[id(empty)] = nn.Parameter(value, tensor.requires_grad) if is_parameter else value
        return cast(M, copy.deepcopy(blueprint, copies))


def shard(method: Method, train: ResolvedTrain, device: torch.device) -> ShardedMethod | None:
    """Shard a method if `train.sharding` asks for it and there are several ranks; else return None."""
    if train.sharding == "none" or world_size() == 1:
        return None
    return ShardedMethod(method, device)


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor sharded as `like`; itself if `like` is not sharded. All ranks have the same tensor."""
    if not isinstance(like, DTensor):
        return whole
    sharded = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return sharded.clone()  # without a reference to the whole tensor


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _without_weights(method: Method) -> Method:
    """Copy a method without the memory of its weights and buffers."""
    copies: dict[int, object] = {}
    for tensor in _tensors(method):
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(method, copies)
