"""The one interface of a pretraining method."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from dasl_core.spec import JobSpec


@dataclass(frozen=True)
class MethodOutput:
    """What one forward gives on one rank.

    Attributes:
        loss: scalar; its mean over ranks is the loss of the global batch.
        embeddings: (V, B, h), raw (not normalised), of V views of this rank's B samples. The
            regularizers act on them.
    """

    loss: Tensor
    embeddings: Tensor


class Method(nn.Module, ABC):
    """A backbone, its heads and a loss. DDP wraps it whole."""

    num_views: int
    backbone: nn.Module

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        """Build from a resolved spec."""

    @abstractmethod
    def forward(self, views: Sequence[Tensor]) -> MethodOutput:
        """`views`: `num_views` batches of images (B, C, H, W), the same samples in each."""
