"""Weighted k-nearest-neighbor classification: the standard probe of self-supervised features."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dasl_core import tensors
from dasl_core.distributed import gather, group_size
from dasl_core.tensors import NotFiniteError


@torch.no_grad()
def knn_accuracy(
    train_x: Tensor | np.ndarray,
    train_y: Tensor | np.ndarray,
    test_x: Tensor | np.ndarray,
    test_y: Tensor | np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Weighted k-NN accuracy: the share of test samples that `knn_hits` finds right, from 0 to 1."""
    return knn_hits(train_x, train_y, test_x, test_y, (k,), temperature).double().mean().item()


@torch.no_grad()
def knn_hits(
    train_x: Tensor | np.ndarray,
    train_y: Tensor | np.ndarray,
    test_x: Tensor | np.ndarray,
    test_y: Tensor | np.ndarray,
    ks: Sequence[int] = (20,),
    temperature: float = 0.07,
    on_block: Callable[[], None] = lambda: None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Whether the class of each test sample wins the weighted vote of its nearest neighbors.

    The neighbors are the K training samples with the largest cosine similarity. Each votes with the
    weight ``exp(similarity / temperature)`` (Wu et al., "Unsupervised Feature Learning via
    Non-Parametric Instance Discrimination", 2018). Similarities are computed in tiles on the device
    of `train_x`: the additional memory is a few tiles and the neighbors of a block of queries.

    Args:
        train_x: (N, d) bank of features.
        train_y: (N,) integer classes.
        test_x: (M, d) features, on any device.
        test_y: (M,) integer classes; a class that the bank lacks counts as wrong.
        ks: numbers K of neighbors that vote, at most the size of the bank, counted in one pass.
        temperature: above 0.
        on_block: called before each block of test samples; a large bank has many blocks.
        group: ranks that share the bank: `train_x` and `train_y` are this rank's part, which may be empty, and
        the test samples are the same on all ranks. None: this process has the whole bank.

    Returns:
        (len(ks), M) bool on the CPU, the same on all ranks. Ties go to the smaller class number.

    Raises:
        NotFiniteError: features hold NaN or infinite numbers, on any rank.
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    bank = _bank(train_x, group)
    queries = tensors.feature_matrix(test_x, "test_x")
    tensors.check_same_width(bank, queries)
    bank_labels = tensors.label_vector(train_y, "train_y", bank.shape[0], bank.device)
    query_labels = tensors.label_vector(test_y, "test_y", queries.shape[0], bank.device)
    for k in ks:
        tensors.check_whole_number(k, "k")
    most = max(ks)
    tensors.check_number(temperature, "temperature")

    hits = []
    with tensors.exact_products(bank.device):
        for rows in tensors.blocks(queries.shape[0]):
            on_block()
            block = tensors.unit_rows(queries[rows]).to(bank)
            similarity, neighbor_label = _nearest(block, bank, bank_labels, most)
            if group_size(group) > 1:
                similarity, neighbor_label = _merge_nearest(similarity, neighbor_label, most, group)
            classes, neighbor_class = torch.unique(neighbor_label, return_inverse=True)
            # Relative to the nearest, so that small temperatures do not overflow; the result is the same.
            weight = ((similarity - similarity[:, :1]) / temperature).exp()
            for part in tensors.tiles(len(block), classes.numel()):
                right = []
                for k in ks:
                    votes = weight.new_zeros(len(weight[part]), classes.numel())
                    votes.scatter_add_(1, neighbor_class[part, :k], weight[part, :k])
                    right.append(classes[votes.argmax(dim=1)] == query_labels[rows][part])
                hits.append(torch.stack(right).cpu())
    return torch.cat(hits, dim=1)


@torch.no_grad()
def nearest_neighbors(
    queries: Tensor,
    bank: Tensor,
    positions: Tensor,
    k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Return cosine similarities and positions (Q, K) of the nearest samples in a bank, nearest first.

    K is `k`, or the size of a smaller bank.

    Args:
        queries: (Q, d) features.
        bank: (N, d) features; with a group, this rank's part, which may be empty.
        positions: (N,) int64 identifiers of the samples in the bank.
        k: number of neighbors.
        group: as for `knn_hits`.
    """
    with tensors.exact_products(bank.device):
        unit = tensors.unit_rows(queries).to(bank)
        similarity, neighbor = _nearest(unit, bank, positions.to(bank.device), k)
        if group_size(group) > 1:
            similarity, neighbor = _merge_nearest(similarity, neighbor, k, group)
    count = int(similarity.isfinite().sum(dim=1).min()) if len(similarity) else 0
    return similarity[:, :count].cpu(), neighbor[:, :count].cpu()


def _bank(train_x: Tensor | np.ndarray, group: dist.ProcessGroup | None) -> Tensor:
    """Check this rank's part of the bank; if any rank's part is not finite, all ranks raise."""
    if group_size(group) == 1:
        return tensors.feature_matrix(train_x, "train_x")
    problem: NotFiniteError | None = None
    bank = torch.empty(0, 1)
    try:
        bank = tensors.feature_matrix(train_x, "train_x", min_rows=0)
    except NotFiniteError as error:
        problem = error
    if int(_exchange(torch.tensor([int(problem is not None)]), group).sum()):
        raise problem or NotFiniteError("train_x holds NaN or infinite numbers on another rank")
    return bank


def _nearest(queries: Tensor, bank: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return similarities and labels (Q, k) of the k nearest samples in the bank, nearest first."""
    similarity = queries.new_empty(len(queries), 0)
    neighbor_label = labels.new_empty(len(queries), 0)
    for columns in tensors.blocks(bank.shape[0]):
        tile = queries @ tensors.unit_rows(bank[columns]).t()
        nearest, index = tile.topk(min(k, tile.shape[1]), dim=1)
        # Merge the nearest of this tile with those of earlier tiles.
        similarity = torch.cat([similarity, nearest], dim=1)
        neighbor_label = torch.cat([neighbor_label, labels[columns][index]], dim=1)
        similarity, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
        neighbor_label = neighbor_label.gather(1, index)
    return similarity, neighbor_label


def _merge_nearest(
    similarity: Tensor, neighbor_label: Tensor, k: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Merge the nearest samples of all ranks' parts of the bank; smaller parts are padded to k."""
    missing = k - similarity.shape[1]
    similarity = F.pad(similarity, (0, missing), value=-torch.inf)
    neighbor_label = F.pad(neighbor_label, (0, missing))
    ranks, queries = group_size(group), len(similarity)
    everyone = [
        _exchange(values, group).view(ranks, queries, k).transpose(0, 1).flatten(1)
        for values in (similarity, neighbor_label)
    ]
    similarity, index = everyone[0].topk(k, dim=1)
    return similarity, everyone[1].gather(1, index)


def _exchange(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ranks' tensors. The bank may be on the CPU while ranks communicate between GPUs."""
    on_gpu = "nccl" in dist.get_backend(group)
    return gather(tensor.to("cuda" if on_gpu else "cpu"), group).to(tensor.device)
