"""Weighted k-nearest-neighbour classification: the standard probe of self-supervised features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dasl_core.evaluate import inputs


@torch.no_grad()
def knn_accuracy(
    train_x: Tensor | np.ndarray,
    train_y: Tensor | np.ndarray,
    test_x: Tensor | np.ndarray,
    test_y: Tensor | np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Share of test samples whose class wins the vote of their k nearest training samples.

    Nearness is cosine similarity; a neighbour votes with the weight ``exp(similarity/temperature)``
    (Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", 2018).
    The similarities are formed in tiles, on the device of `train_x`.

    Args:
        train_x: (N, d) bank of features.
        train_y: (N,) integer classes.
        test_x: (M, d) features.
        test_y: (M,) integer classes; a class that the bank lacks counts as wrong.
        k: neighbours that vote; all of the bank when it holds fewer.
        temperature: above 0.

    Returns:
        Top-1 accuracy from 0 to 1. Equal votes go to the smaller class number.

    Raises:
        ValueError: when shapes or numbers do not fit; the message names the argument.
    """
    bank = inputs.features(train_x, "train_x")
    queries = inputs.features(test_x, "test_x")
    if queries.shape[1] != bank.shape[1]:
        raise ValueError(
            f"test_x must have as many columns as train_x, {bank.shape[1]}; given {queries.shape[1]}"
        )
    bank_labels = inputs.labels(train_y, "train_y", bank.shape[0], bank.device)
    query_labels = inputs.labels(test_y, "test_y", queries.shape[0], bank.device)
    if k < 1:
        raise ValueError(f"k must be at least 1; given {k}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0; given {temperature}")

    k = min(k, bank.shape[0])
    bank = inputs.unit_rows(bank)
    queries = inputs.unit_rows(queries).to(bank)
    classes, bank_classes = torch.unique(bank_labels, return_inverse=True)
    correct = torch.zeros((), dtype=torch.int64, device=bank.device)
    with torch.autocast(bank.device.type, enabled=False):
        for rows in inputs.tiles(queries.shape[0], bank.shape[0]):
            similarity, neighbour = (queries[rows] @ bank.t()).topk(k, dim=1)
            # Relative to the nearest: the same vote, and no overflow at small temperatures.
            weight = ((similarity - similarity[:, :1]) / temperature).exp()
            votes = weight.new_zeros(weight.shape[0], classes.numel())
            votes.scatter_add_(1, bank_classes[neighbour], weight)
            correct += (classes[votes.argmax(dim=1)] == query_labels[rows]).sum()
    return int(correct) / queries.shape[0]
