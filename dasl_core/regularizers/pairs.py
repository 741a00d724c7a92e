"""Pairs of embeddings with different labels, for regularizers that push such pairs apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.tensors import check_matrix, full_precision, label_vector


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
