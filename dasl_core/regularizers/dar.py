"""Difference alignment regularization (DAR): differences of inter-class pairs should be alike.

Chen et al., "Robust Similarity Learning with Difference Alignment Regularization", ICLR 2024. The
first-order difference of a pair of embeddings is ``d_ij = |phi_i - phi_j|``; the regularizer is the
CTV norm of a matrix whose columns are such differences, ``R = sum over pairs of columns G(d - d')``.
The total loss is ``L_base + lambda R``, whatever the base loss.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.regularizers.norms import CtvNorm, Reduction, ctv_norm
from dasl_core.tensors import check_choice, check_matrix, full_precision

Difference = Literal["abs", "signed", "distance"]
Estimator = Literal["chain", "unbiased", "full"]


def difference_alignment(
    embeddings: Tensor,
    labels: Tensor,
    *,
    norm: CtvNorm = "l1",
    difference: Difference = "abs",
    estimator: Estimator = "chain",
    reduction: Reduction = "mean",
    normalize: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The regularizer R of one batch.

    Args:
        embeddings: (N, h), the embeddings that the base loss uses; on several processes, those of
            the global batch, gathered with a backward that sums over ranks.
        labels: (N,) integers. Only pairs of different labels enter: instance ids (cluster-free),
            cluster ids (cluster-used) or classes (supervised). The order is made on the CPU: labels
            that are there already keep a step from waiting for the device.
        norm: G, see `ctv_norm`.
        difference: ``"abs"`` elementwise ``|phi_i - phi_j|``; ``"signed"`` ``phi_i - phi_j``, whose
            value depends on how samples are numbered; ``"distance"`` the scalar ``||phi_i - phi_j||``,
            which jobs take unless told otherwise (measured: docs/spec.md, "Choices the papers leave open").
        estimator: ``"chain"`` takes consecutive pairs of a random class-alternating order of the
            batch (the paper's). ``"unbiased"`` weighs the chain's column pairs that share a sample,
            and those that do not, as often as they occur among all inter-class pairs; when all
            labels differ its expectation is exactly ``"full"``. With fewer than three columns, it
            lets their plain mean stand for both kinds. ``"full"`` takes all inter-class pairs of the
            batch, N (N - 1) / 2 columns: small batches only.
        reduction: ``"mean"`` divides by the number of column pairs, so that the weight carries over
            between batch sizes; ``"sum"`` is the paper's literal form.
        normalize: L2-normalise first. Without it, R can be driven to 0 by shrinking the norms.
        generator: a CPU generator for the order, the same on every rank; None takes torch's global
            one.

    Returns:
        A scalar in float32 (float64 for float64 embeddings), also under autocast. It is 0, and
        differentiable, when fewer than two columns remain, as in a batch of a single class.

    Raises:
        ValueError: when an argument is none of the above; the message names it.
    """
    check_matrix("embeddings", embeddings, "(N, h)")
    _check_labels(labels, embeddings.shape[0])
    check_choice("norm", norm, get_args(CtvNorm))
    check_choice("difference", difference, get_args(Difference))
    check_choice("estimator", estimator, get_args(Estimator))
    check_choice("reduction", reduction, get_args(Reduction))
    with torch.autocast(embeddings.device.type, enabled=False):
        phi = full_precision(embeddings)
        if normalize:
            phi = F.normalize(phi, dim=1)
        if estimator == "full":
            pairs = _all_inter_class_pairs(labels)
        else:
            pairs = torch.stack(inter_class_chain(labels, generator))
        left, right = _moved(pairs, phi.device)
        columns = _differences(phi, left, right, difference)
        if estimator == "unbiased":
            return _unbiased_from_chain(columns, labels, norm, reduction)
        return ctv_norm(columns, norm, reduction)


def inter_class_chain(
    labels: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Consecutive pairs of a random order of the batch in which neighbours differ in label.

    A random permutation is walked once; a sample whose label equals that of its predecessor waits
    until another label has gone by, and what still waits at the end is fitted in between. Samples
    that fit nowhere stay out, so the number of links is `chain_length` and is as large as possible.
    If all labels differ, the order is ``torch.randperm(N, generator=generator)``. O(N) time.

    Args:
        labels: (N,) integers, on any device.
        generator: a CPU generator, so that the order does not depend on device or rank; None takes
            torch's global one.

    Returns:
        Two int64 index tensors (n,), on the device of `labels`: link k joins samples ``left[k]`` and
        ``right[k]``, and ``right[k] == left[k + 1]``.

    Raises:
        ValueError: when `labels` are not (N,) integers or `generator` is not on the CPU.
    """
    _check_labels(labels, None)
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(f"generator must be a CPU generator; given one on {generator.device}")
    order = torch.randperm(labels.shape[0], generator=generator)
    in_order = labels.cpu()[order]
    if bool((in_order[1:] == in_order[:-1]).any()):
        order = order[_class_alternating(in_order.tolist())]
    order = order.to(labels.device)
    return order[:-1], order[1:]


def chain_length(labels: Tensor) -> int:
    """Number of columns that `inter_class_chain` keeps for these labels, whatever its random order.

    It is ``min(N - 1, 2 (N - m))`` with m the size of the largest class: every sample outside that
    class gives at most two links.
    """
    _check_labels(labels, None)
    num_samples = labels.shape[0]
    if num_samples < 2:
        return 0
    largest = max(_class_sizes(labels))
    return min(num_samples - 1, 2 * (num_samples - largest))


def pair_count(labels: Tensor) -> int:
    """Number of inter-class pairs of these labels: the columns of the estimator ``"full"``."""
    _check_labels(labels, None)
    return sum(size * (labels.shape[0] - size) for size in _class_sizes(labels)) // 2


def _class_alternating(labels: list[int]) -> list[int]:
    """Positions of `labels` in an order whose neighbours differ; O(N)."""
    placed: list[int] = []
    # All who wait have the label of the last one placed: were it another, they would be placed.
    waiting: list[int] = []
    last: int | None = None
    for position, label in enumerate(labels):
        if label == last:
            waiting.append(position)
            continue
        placed.append(position)
        last = label
        if waiting:
            placed.append(waiting.pop())
            last = labels[placed[-1]]
    if not waiting:
        return placed
    # Fit the rest, all of one label, in front and between neighbours that both have another one.
    surplus = labels[waiting[0]]
    fitted: list[int] = []
    previous_is_surplus = False
    for position in placed:
        is_surplus = labels[position] == surplus
        if waiting and not is_surplus and not previous_is_surplus:
            fitted.append(waiting.pop())
        fitted.append(position)
        previous_is_surplus = is_surplus
    return fitted


def _all_inter_class_pairs(labels: Tensor) -> Tensor:
    """(2, P) indices of the samples of every pair."""
    pairs = torch.triu_indices(labels.shape[0], labels.shape[0], offset=1, device=labels.device)
    left, right = labels[pairs]
    return pairs[:, left != right]


def _moved(indices: Tensor, device: torch.device) -> Tensor:
    """On `device`. From pinned memory, or the host would wait for all that the GPU has yet to do."""
    if indices.device.type == "cpu" and device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices.to(device)


def _differences(phi: Tensor, left: Tensor, right: Tensor, difference: Difference) -> Tensor:
    """First-order differences of the pairs, one a row: (n, h), or (n, 1) for distances."""
    signed = phi[left] - phi[right]
    if difference == "signed":
        return signed
    if difference == "abs":
        return signed.abs()
    distances: Tensor = torch.linalg.vector_norm(signed, dim=1, keepdim=True)
    return distances


def _unbiased_from_chain(
    columns: Tensor, labels: Tensor, norm: CtvNorm, reduction: Reduction
) -> Tensor:
    """Reweigh column pairs with and without a common sample by their numbers in the full sum.

    Of the pairs of columns of a chain of n links, n - 1 are neighbours and share a sample, and
    (n - 1)(n - 2)/2 do not. Among all inter-class pairs (degree d_i at sample i, P in total),
    ``sum_i d_i (d_i - 1)/2`` pairs of columns share one and the other P (P - 1)/2 do not: with N
    different labels, N (N - 1)(N - 2)/2 and 3 C(N, 4).
    """
    class_sizes = _class_sizes(labels)
    num_samples = labels.shape[0]
    num_pairs = pair_count(labels)
    full_sharing = sum(
        size * (num_samples - size) * (num_samples - size - 1) // 2 for size in class_sizes
    )
    full_total = num_pairs * (num_pairs - 1) // 2

    links = columns.shape[0]
    total = ctv_norm(columns, norm)
    if links < 3:
        mean = total / max(1, links * (links - 1) // 2)
    else:
        sharing = _sum_of_norms(columns[1:] - columns[:-1], norm)
        separate_mean = (total - sharing) / ((links - 1) * (links - 2) // 2)
        share = full_sharing / full_total
        mean = share * sharing / (links - 1) + (1 - share) * separate_mean
    return mean if reduction == "mean" else mean * full_total


def _class_sizes(labels: Tensor) -> list[int]:
    sizes: list[int] = torch.unique(labels, return_counts=True)[1].tolist()
    return sizes


def _sum_of_norms(rows: Tensor, norm: CtvNorm) -> Tensor:
    if norm == "l1":
        return rows.abs().sum()
    if norm == "l2":
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.sum()
    return rows.square().sum()


def _check_labels(labels: object, num_samples: int | None) -> None:
    expected = "(N,)" if num_samples is None else f"({num_samples},), one label an embedding"
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"labels must be a tensor of shape {expected}; given {type(labels).__name__}"
        )
    if labels.dim() != 1 or num_samples not in (None, labels.shape[0]):
        raise ValueError(f"labels must have the shape {expected}; given {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers; given {labels.dtype}")
