"""Weighted k-nearest-neighbor classification: the standard probe of self-supervised features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors


@torch.no_grad()
def knn_accuracy(
    train_x: Tensor | np.ndarray,
    train_y: Tensor | np.ndarray,
    test_x: Tensor | np.ndarray,
    test_y: Tensor | np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
    on_block: Callable[[], None] = lambda: None,
) -> float:
    """Weighted k-NN accuracy: the share of test samples whose class wins the vote of their neighbors.

    The neighbors are the k training samples with the largest cosine similarity. Each votes with the
    weight ``exp(similarity / temperature)`` (Wu et al., "Unsupervised Feature Learning via
    Non-Parametric Instance Discrimination", 2018). Similarities are computed in tiles on the device
    of `train_x`: the additional memory is a few tiles and the neighbors of a block of queries.

    Args:
        train_x: (N, d) bank of features.
        train_y: (N,) integer classes.
        test_x: (M, d) features, on any device.
        test_y: (M,) integer classes; a class that the bank lacks counts as wrong.
        k: number of neighbors that vote; in a smaller bank, all of it.
        temperature: above 0.
        on_block: called before each block of test samples, of which a large bank makes many.

    Returns:
        Top-1 accuracy from 0 to 1. Equal votes go to the smaller class number.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    bank = tensors.feature_matrix(train_x, "train_x")
    queries = tensors.feature_matrix(test_x, "test_x")
    tensors.check_same_width(bank, queries)
    bank_labels = tensors.label_vector(train_y, "train_y", bank.shape[0], bank.device)
    query_labels = tensors.label_vector(test_y, "test_y", queries.shape[0], bank.device)
    tensors.check_whole_number(k, "k")
    tensors.check_number(temperature, "temperature")

    classes, bank_classes = torch.unique(bank_labels, return_inverse=True)
    correct = torch.zeros((), dtype=torch.int64, device=bank.device)
    with tensors.exact_products(bank.device):
        for rows in tensors.blocks(queries.shape[0]):
            on_block()
            block = tensors.unit_rows(queries[rows]).to(bank)
            similarity, neighbor_class = _nearest(block, bank, bank_classes, k)
            # Relative to the nearest: the result is the same, and small temperatures do not overflow.
            weight = ((similarity - similarity[:, :1]) / temperature).exp()
            for part in tensors.tiles(len(block), classes.numel()):
                votes = weight.new_zeros(len(weight[part]), classes.numel())
                votes.scatter_add_(1, neighbor_class[part], weight[part])
                correct += (classes[votes.argmax(dim=1)] == query_labels[rows][part]).sum()
    return int(correct) / queries.shape[0]


def _nearest(queries: Tensor, bank: Tensor, bank_classes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Similarities and classes (Q, k) of the k nearest samples of the bank, nearest first."""
    similarity = queries.new_empty(len(queries), 0)
    neighbor_class = bank_classes.new_empty(len(queries), 0)
    for columns in tensors.blocks(bank.shape[0]):
        tile = queries @ tensors.unit_rows(bank[columns]).t()
        nearest, index = tile.topk(min(k, tile.shape[1]), dim=1)
        # Merge the nearest of this tile with the nearest of all tiles before.
        similarity = torch.cat([similarity, nearest], dim=1)
        neighbor_class = torch.cat([neighbor_class, bank_classes[columns][index]], dim=1)
        similarity, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
        neighbor_class = neighbor_class.gather(1, index)
    return similarity, neighbor_class
