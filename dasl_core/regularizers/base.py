"""What a regularizer is: a term on the embeddings of the global batch; and the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dasl_core.seeds import stream
from dasl_core.tensors import to_device


class Regularizer(nn.Module, ABC):
    """A term of the loss of a job, without its weight. What the next step depends on is in its buffers.

    Args:
        settings: the resolved settings; a subclass names their type.
        seed: of its random numbers.
    """

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed

    @abstractmethod
    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        """Compute the unweighted term, the same on all ranks.

        Args:
            embeddings: (V, N, h), raw, of V views of the global batch.
            labels: (N,) of its samples, on the CPU; those with different ones may form a pair.
            step: optimizer steps done before this one, for random numbers.
        """

    def metrics(self) -> dict[str, Tensor]:
        """Metrics of the last batch besides the term."""
        return {}


class PairRegularizer(Regularizer):
    """A term on the embeddings of all views, by the labels of their samples."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        labels = to_device(labels, embeddings.device).repeat(len(embeddings))
        return self.of_pairs(embeddings.flatten(0, 1), labels)

    @abstractmethod
    def of_pairs(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the term of embeddings (V N, h) with labels (V N,)."""


class SlicedRegularizer(Regularizer):
    """A term on the projections of each view's embeddings on random directions."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        # The stream's name decides the directions: do not change it.
        return self.of_slices(embeddings, stream(self.seed, "rivals", step))

    @abstractmethod
    def of_slices(self, embeddings: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the term of embeddings (V, N, h) with directions from a generator."""


REGISTRY: dict[str, type[Regularizer]] = {}
"""The class of every regularizer, by name."""

Registered = TypeVar("Registered", bound=type[Regularizer])


def register(name: str) -> Callable[[Registered], Registered]:
    """Register the class of the regularizer whose settings have this `name`."""

    def add(regularizer: Registered) -> Registered:
        REGISTRY[name] = regularizer
        return regularizer

    return add
