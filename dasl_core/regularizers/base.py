"""Base classes of regularizers, terms on the embeddings of the global batch, and what several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.regularizers.shares import GradientShare
from dasl_core.seeds import stream
from dasl_core.spec.fields import LARGEST_WEIGHT
from dasl_core.tensors import (
    check_matrix,
    check_whole_number,
    full_precision,
    label_vector,
    to_device,
)

REGISTRY: dict[str, type[Regularizer]] = {}
"""The class of every regularizer, by name."""


class Regularizer(nn.Module, ABC):
    """A loss term of a job, without its weight. Its state is in buffers.

    Args:
        settings: the resolved settings; a subclass defines their type.
        seed: seed of its random numbers.

    Attributes:
        gradient_norms: (2,) float64, norms of the gradients of the method's loss and of this term, without its
            weight, summed over the steps that were measured before `window_end`.
        window_end: () int64, index of the step at which the sums become final; -1: nothing was measured yet.
        share_is_checked: () bool, whether a share outside the usual range was reported, if it is.
    """

    gradient_norms: Tensor
    window_end: Tensor
    share_is_checked: Tensor

    def __init_subclass__(cls, name: str | None = None) -> None:
        """Register the class of the regularizer whose settings have this `name`."""
        if name is not None:
            REGISTRY[name] = cls

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed
        self.register_buffer("gradient_norms", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("window_end", torch.tensor(-1))
        self.register_buffer("share_is_checked", torch.tensor(False))

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

    @torch.no_grad()
    def add_measurement(self, measured: GradientShare, step: int, window: int) -> None:
        """Add the gradients of a step to the sums, in the first `window` steps since the first measurement."""
        norms = torch.stack([measured.loss_norm, measured.term_norm])
        # torch.where, because a branch would wait for the device.
        usable = norms.isfinite().all() & (norms > 0).all()
        starts = usable & (self.window_end < 0)
        self.window_end.copy_(torch.where(starts, step + window, self.window_end))
        usable &= step < self.window_end
        self.gradient_norms += torch.where(usable, norms, 0)

    def weight_for_share(self, share: float) -> Tensor:
        """Return the weight () with which the term has this share of the loss's gradient; 0 before a measurement."""
        of_loss, of_term = self.gradient_norms
        return torch.where(of_term > 0, share * of_loss / of_term, 0).clamp(max=LARGEST_WEIGHT)


class PairRegularizer(Regularizer):
    """A term on the embeddings of all views, by the labels of their samples."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        labels = to_device(labels, embeddings.device).repeat(len(embeddings))
        return self.pair_loss(embeddings.flatten(0, 1), labels)

    @abstractmethod
    def pair_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the term of embeddings (V N, h) with labels (V N,)."""


def directions_and_pairs(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return normalized embeddings (N, h) in full precision, and (N, N) whether two labels differ.

    Raises:
        ValueError: an argument has another shape or type; the message names it.
    """
    check_matrix("embeddings", embeddings, "(N, h)")
    labels = label_vector(labels, "labels", len(embeddings), embeddings.device)
    with torch.autocast(embeddings.device.type, enabled=False):
        directions = F.normalize(full_precision(embeddings), dim=1)
    return directions, labels.unsqueeze(1) != labels


def mean_where(values: Tensor, selected: Tensor) -> Tensor:
    """Mean of the selected values; a differentiable 0 if none is selected."""
    return values.masked_fill(~selected, 0).sum() / selected.sum().clamp(min=1)


class SlicedRegularizer(Regularizer):
    """A term on the projections of each view's embeddings on random directions."""

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        # The stream's name determines the directions: do not change it.
        return self.sliced_loss(embeddings, stream(self.seed, "rivals", step))

    @abstractmethod
    def sliced_loss(self, embeddings: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the term of embeddings (V, N, h) with directions from a generator."""


def check_views(embeddings: object) -> Tensor:
    """Return embeddings (..., N, h) of at least one sample in full precision; a ValueError says what else they are."""
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        given = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ValueError(f"embeddings must be a real floating-point tensor; given {given}")
    if embeddings.dim() < 2 or 0 in embeddings.shape:
        raise ValueError(
            "embeddings must have the shape (..., N, h), without empty dimensions; given "
            f"{tuple(embeddings.shape)}"
        )
    return full_precision(embeddings)


def random_directions(like: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw unit columns (h, count) for `like` (..., N, h), on the CPU so that all ranks agree.

    Raises:
        ValueError: `count` is not a whole number of at least 1.
    """
    check_whole_number(count, "slices")
    # In float32 and normalized on the device, because float64 on the CPU took seconds per step for large sizes.
    drawn = torch.randn(count, like.shape[-1], generator=generator, dtype=torch.float32)
    return F.normalize(to_device(drawn, like.device).to(like.dtype), dim=1).T
