"""Base classes of regularizers, terms on the embeddings of the global batch, and the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from dasl_core.seeds import stream
from dasl_core.tensors import to_device

REGISTRY: dict[str, type[Regularizer]] = {}
"""The class of every regularizer, by name."""


class Regularizer(nn.Module, ABC):
    """A loss term of a job, without its weight. Its state is in buffers.

    Args:
    settings: the resolved settings; a subclass defines their type.
    seed: seed of its random numbers.
    """

    def __init_subclass__(cls, name: str | None = None) -> None:
        """Register the class of the regularizer whose settings have this `name`."""
        if name is not None:
            REGISTRY[name] = cls

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed

    @abstractmethod
    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        """Compute the unweighted term, the same on all ranks.

        Args:
            embeddings: (V, N, h), raw, of V views of the global batch.
            labels: (N,) labels of the samples, on the CPU; different labels may form a pair.
            step: number of optimizer steps before this one, for random numbers.
        """

    def metrics(self) -> dict[str, Tensor]:
        """Return further metrics of the last batch."""
        return {}


class PairRegularizer(Regularizer):
    """A term on the embeddings of all views, by the labels of their samples."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        labels = to_device(labels, embeddings.device).repeat(len(embeddings))
        return self.pair_loss(embeddings.flatten(0, 1), labels)

    @abstractmethod
    def pair_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the term of embeddings (V N, h) with labels (V N,)."""


class SlicedRegularizer(Regularizer):
    """A term on the projections of each view's embeddings on random directions."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        # The stream's name determines the directions: do not change it.
        return self.sliced_loss(embeddings, stream(self.seed, "rivals", step))

    @abstractmethod
    def sliced_loss(self, embeddings: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the term of embeddings (V, N, h) with directions from a generator."""
