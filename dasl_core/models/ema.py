"""EMA teachers: networks whose weights are an exponential moving average of the student's."""

import copy
import math

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dasl_core.distributed import local_shard


class Teacher(nn.Module):
    """A backbone and its head whose weights are averages of the student's and get no gradient.

    It starts as an exact copy and stays in training mode: its BatchNorm layers use the statistics of
    the teacher's batch and update their own running statistics, so `update` changes parameters only.
    It has no dropout and no drop path (Caron et al. 2021 use drop path only in the student).
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = copy.deepcopy(backbone), copy.deepcopy(head)
        self.requires_grad_(False)
        for layer in self.modules():
            if isinstance(layer, DropPath):
                layer.drop_prob = 0.0
            elif isinstance(layer, _DropoutNd):
                layer.p = 0.0

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Compute the outputs (N, ...) of the head for images (N, C, H, W), without a graph."""
        outputs: Tensor = self.head(self.backbone(images))
        return outputs

    @torch.no_grad()
    def update(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        momentum: float,
        where: Tensor | None = None,
    ) -> None:
        """``teacher = momentum * teacher + (1 - momentum) * student``, in place and on the device.

        Args:
            where: () bool on the device: if false, nothing changes.
        """
        # Under FSDP, teacher and student are sharded alike.
        teachers = [local_shard(weight) for weight in self.parameters()]
        students = [
            local_shard(weight) for each in (backbone, head) for weight in each.parameters()
        ]
        if where is None:
            torch._foreach_lerp_(teachers, students, 1 - momentum)
            return
        # The host does not know `where`, and lerp takes no weight from the device for many tensors at once.
        changes = torch._foreach_sub(students, teachers)
        torch._foreach_mul_(changes, where.to(changes[0].dtype) * (1 - momentum))
        torch._foreach_add_(teachers, changes)


def cosine_momentum(base: float, step: int, total: int) -> float:
    """Momentum of a step: a half cosine from `base` at step 0 to 1 at `total` (Grill et al. 2020, 3.2)."""
    return 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2
