"""Alignment of the distances of all inter-class pairs, in closed form.

With P pairs and their distances d in ascending order, the sum of ``|d_p - d_q|`` over all pairs of
pairs is ``sum_k k (P - k) (d_(k+1) - d_(k))``, and its derivative by d_p is the number of smaller
distances minus the number of larger ones. The sum of ``(d_p - d_q)^2`` is ``P sum_p (d_p - mean)^2``.
So all ``P (P - 1) / 2`` differences cost a sort of P numbers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dasl_core.regularizers.norms import CtvNorm, sign_counts
from dasl_core.tensors import tiles


def distance_alignment(phi: Tensor, labels: Tensor, num_pairs: int, norm: CtvNorm) -> Tensor:
    """Sum the differences of the distances of all pairs of inter-class pairs.

    O(N^2 (h + log N)) time and O(N^2) memory, without waiting for the device. Where two distances are
    equal, the gradient is the one with sign(0) = 0; where two embeddings are, the gradient of their distance is 0.

    Args:
        phi: (N, h) in float32 or float64.
        labels: (N,) int64, on the device of `phi`, from 0 to N - 1.
        num_pairs: P, number of pairs with different labels.
        norm: G; ``"l1"`` and ``"l2"`` of distances are the same.

    Returns:
        A scalar of the type of `phi`, which can be differentiated once.
    """
    value: Tensor = _AllPairs.apply(phi, labels, num_pairs, norm == "sq_l2")
    return value


class _AllPairs(torch.autograd.Function):
    """Pairs i < j are in the order of `F.pdist`, row by row of the upper triangle."""

    @staticmethod
    def forward(ctx: Any, phi: Tensor, labels: Tensor, num_pairs: int, squared: bool) -> Tensor:
        phi = phi.detach()
        # From direct differences: a Gram matrix loses small distances and breaks ties.
        distances = F.pdist(phi)
        # float32 holds labels below N exactly.
        is_pair = F.pdist(labels.float().unsqueeze(1), p=1) > 0
        value, slopes = (_squares if squared else _absolutes)(distances, is_pair, num_pairs)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(_gradient(phi, distances, slopes))
        return value.to(phi.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        gradient: Tensor = ctx.saved_tensors[0]
        return gradient * grad_output, None, None, None


def _absolutes(distances: Tensor, is_pair: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
    """Return the sum of ``|d_p - d_q|`` and its derivatives: integers, 0 for pairs of one class."""
    # Pairs of one class come last. A boolean index would make the host wait for the device.
    ordered, order = distances.masked_fill(~is_pair, torch.inf).sort()
    ordered, order = ordered[:num_pairs], order[:num_pairs]
    total = distances.new_zeros((), dtype=torch.float64)
    for part in tiles(num_pairs - 1, 1):
        rank = torch.arange(part.start + 1, part.stop + 1, device=distances.device)
        gaps = ordered[part.start : part.stop + 1].double().diff()
        total += (gaps * (rank * (num_pairs - rank))).sum()
    slopes = torch.zeros_like(distances, dtype=torch.int32)
    slopes[order] = sign_counts(ordered)
    return total, slopes


def _squares(distances: Tensor, is_pair: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
    """Return the sum of ``(d_p - d_q)^2`` and its derivatives, 0 for pairs of one class."""
    exact = distances.double() * is_pair
    centered = (exact - exact.sum() / num_pairs) * is_pair
    return num_pairs * centered.square().sum(), 2 * num_pairs * centered


def _gradient(phi: Tensor, distances: Tensor, slopes: Tensor) -> Tensor:
    """Return ``sum_j w_ij (phi_i - phi_j)`` (N, h), with ``w_ij = slope / distance``, or 0 where that is 0."""
    count, width = phi.shape
    # A product of matrices cancels where two embeddings are close: by 1e-9 of float64's digits, not of float32's.
    direct = phi.dtype == torch.float64
    exact = phi if direct else phi.double() - phi.mean(dim=0, dtype=torch.float64)
    weights = (slopes.double() / distances).masked_fill_(distances == 0, 0)
    gradient = torch.zeros_like(exact)
    first = 0
    for rows in tiles(count, count * width if direct else count):
        # Pairs of these rows i with j > i, in a matrix whose columns begin at the first row.
        above, right = exact[rows], exact[rows.start :]
        is_pair = above.new_ones(len(above), len(right), dtype=torch.bool).triu(1)
        last = first + sum(count - 1 - i for i in range(rows.start, rows.stop))
        tile = weights.new_zeros(is_pair.shape).masked_scatter_(is_pair, weights[first:last])
        first = last
        if direct:
            forces = tile.unsqueeze(2) * (above.unsqueeze(1) - right)
            gradient[rows] += forces.sum(dim=1)
            gradient[rows.start :] -= forces.sum(dim=0)
        else:
            gradient[rows] += tile.sum(dim=1, keepdim=True) * above - tile @ right
            gradient[rows.start :] += tile.sum(dim=0).unsqueeze(1) * right - tile.T @ above
    return gradient.to(phi.dtype)
