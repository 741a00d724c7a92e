"""An EMA teacher: a copy of a network that is its exponential moving average."""

import copy
import math

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd


class Teacher(nn.Module):
    """A backbone and its head that get no gradient: averages of the student's.

    It starts as an exact copy and stays in training mode: BatchNorm layers use the statistics of the
    teacher's own batch and keep running ones of their own, so `update` moves parameters only. Nothing
    is dropped at random in a teacher (Caron et al. 2021 give drop path to the student alone).
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
        """The head's outputs (N, ...) for images (N, C, H, W), without a graph."""
        outputs: Tensor = self.head(self.backbone(images))
        return outputs

    @torch.no_grad()
    def update(self, backbone: nn.Module, head: nn.Module, *, momentum: float) -> None:
        """``teacher = momentum * teacher + (1 - momentum) * student``, in place and on the device."""
        teachers: list[Tensor] = [*self.parameters()]
        students: list[Tensor] = [*backbone.parameters(), *head.parameters()]
        torch._foreach_lerp_(teachers, students, 1 - momentum)


def cosine_momentum(base: float, step: int, total: int) -> float:
    """From `base` at step 0 towards 1 at step `total` (Grill et al. 2020, section 3.2)."""
    return 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2
