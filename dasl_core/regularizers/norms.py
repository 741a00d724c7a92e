"""The cross-total-variation (CTV) norm of a matrix, without storing all pairs of its columns.

``ctv(M) = sum over a < b of G(M_a - M_b)`` for the H columns ``M_a`` in R^h of M and a norm G on R^h
(Chen et al., "Robust Similarity Learning with Difference Alignment Regularization", ICLR 2024; the
ordered double sum printed there is exactly twice this). Constant columns give 0, so on all of
R^{h x H} it is a seminorm whose kernel is the matrices with constant columns.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dasl_core.tensors import check_choice, check_matrix, full_precision

CtvNorm = Literal["l1", "l2", "sq_l2"]
Reduction = Literal["sum", "mean"]

# Sizes of tiles: for l1, entries of some coordinates of all columns; for l2, columns on each side of a
# tile of distances. Ten temporary tensors of this size are small compared with a batch.
_L1_ENTRIES = 1 << 18
_L2_TILE = 512


def ctv_norm(columns: Tensor, norm: CtvNorm = "l1", reduction: Reduction = "sum") -> Tensor:
    """Sum (or mean) of ``G(columns[a] - columns[b])`` over all pairs of rows ``a < b``.

    Args:
        columns: (H, h) real floating-point tensor, one column of the matrix M a row.
        norm: ``"l1"``: G is the sum of absolute entries; O(h H log H) time and O(h H) memory.
            ``"l2"``: G is the Euclidean length; O(H^2 h) time, in tiles, and O(h H) memory.
            ``"sq_l2"``: G is the squared Euclidean length; O(H h). Not a norm: an ablation.
        reduction: ``"sum"``, or ``"mean"``, which divides by the number of pairs H (H - 1) / 2.

    Returns:
        A scalar in float64 for float64 input and in float32 for any other, also under autocast. It
        is 0, and differentiable, when H < 2. Where columns coincide (and, for ``"l1"``, where single
        coordinates do) the gradient is the one with sign(0) = 0 and 0/|0| = 0. It can be
        differentiated once.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    check_choice("norm", norm, get_args(CtvNorm))
    check_choice("reduction", reduction, get_args(Reduction))
    check_matrix("columns", columns, "(H, h)")
    num_columns = columns.shape[0]
    if num_columns < 2:
        return full_precision(columns)[:0].sum()
    with torch.autocast(columns.device.type, enabled=False):
        columns = full_precision(columns)
        value: Tensor
        # In one dimension (DAR's distances) l1 and l2 are the same, and l1 need not visit all pairs.
        if norm == "l1" or (norm == "l2" and columns.shape[1] == 1):
            value = _L1OverPairs.apply(columns)
        elif norm == "l2":
            value = _L2OverPairs.apply(columns)
        else:
            # H ||M||_F^2 - ||sum of columns||^2, in the centered form, which does not cancel.
            value = (columns - columns.mean(dim=0)).square().sum() * num_columns
    if reduction == "mean":
        value = value / (num_columns * (num_columns - 1) // 2)
    return value


class _L1OverPairs(torch.autograd.Function):
    """Per coordinate, ``sum_{a<b} |m_a - m_b| = sum_k (2k - H - 1) m_(k)`` over the sorted values.

    It is summed by gaps, ``sum_k k (H - k) (m_(k+1) - m_(k))``: equal in exact arithmetic, but all
    terms are non-negative, so float32 loses nothing to cancellation and constant columns give 0.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> Tensor:
        num_columns, width = columns.shape
        needs_gradient = ctx.needs_input_grad[0]
        gradient = columns.new_empty(width, num_columns) if needs_gradient else None
        rank = torch.arange(1, num_columns, device=columns.device, dtype=columns.dtype)
        total = columns.new_zeros(())
        step = max(1, _L1_ENTRIES // num_columns)
        for first in range(0, width, step):
            coordinates = slice(first, first + step)
            # (step, H): the sort runs along contiguous memory.
            ordered, order = columns.detach()[:, coordinates].t().contiguous().sort(dim=1)
            total += ordered.diff(dim=1).mul_(rank * (num_columns - rank)).sum()
            if gradient is not None:
                counts = sign_counts(ordered).to(ordered.dtype)
                gradient[coordinates] = torch.empty_like(ordered).scatter_(1, order, counts)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        gradient: Tensor = ctx.saved_tensors[0]  # (h, H), integers, so exact below H = 2^24
        return (gradient * grad_output).t()


def sign_counts(ordered: Tensor) -> Tensor:
    """(number of smaller values) - (number of larger values) for every entry of ascending rows (..., H).

    Both counts follow from where an entry's group of equal values starts and ends in the row.
    Autograd through sort would give ties an arbitrary order instead of brute force's sign(0) = 0.

    Returns:
        Integers (..., H).
    """
    count = ordered.shape[-1]
    index_type = torch.int32 if count < 2**31 else torch.int64
    position = torch.arange(count, device=ordered.device, dtype=index_type)
    is_boundary = ordered[..., 1:] != ordered[..., :-1]
    smaller = torch.zeros_like(ordered, dtype=index_type)  # index of the group's first entry
    smaller[..., 1:] = position[1:] * is_boundary
    smaller = smaller.cummax(dim=-1).values
    last = torch.full_like(smaller, count - 1)  # index of the group's last entry
    last[..., :-1].copy_(torch.where(is_boundary, position[:-1], count - 1))
    last = last.flip(-1).cummin(dim=-1).values.flip(-1)
    return smaller.add_(last).sub_(count - 1)


class _L2OverPairs(torch.autograd.Function):
    """Sum of Euclidean distances over pairs, and its gradient, in tiles of constant size.

    Only tiles on and above the diagonal are computed. The forward pass computes the gradient from the
    distances of each tile. It is as large as the columns, which would have to be saved instead if the
    backward pass recomputed the distances.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> Tensor:
        columns = columns.detach()
        num_columns = columns.shape[0]
        needs_gradient = ctx.needs_input_grad[0]
        # The gradient (sum_b w_ab) M_a - sum_b w_ab M_b with w = 1/distance is a difference of large
        # numbers for close columns: float64 and a common origin keep it exact to float32.
        origin = columns.mean(dim=0, dtype=torch.float64)
        gradient = torch.zeros_like(columns, dtype=torch.float64) if needs_gradient else None
        total = torch.zeros((), device=columns.device, dtype=torch.float64)
        starts = range(0, num_columns, _L2_TILE)
        for first in starts:
            a = slice(first, first + _L2_TILE)
            for second in starts[first // _L2_TILE :]:
                b = slice(second, second + _L2_TILE)
                # Without the matrix-multiply shortcut, which is off by 1e-3 for close float32 columns.
                distances = torch.cdist(
                    columns[a], columns[b], compute_mode="donot_use_mm_for_euclid_dist"
                )
                tile_total = distances.sum(dtype=torch.float64)
                total += (
                    tile_total / 2 if a == b else tile_total
                )  # the diagonal has each pair twice
                if gradient is None:
                    continue
                weights = distances.double().reciprocal().masked_fill_(distances == 0, 0)
                from_a, from_b = columns[a].double() - origin, columns[b].double() - origin
                gradient[a] += weights.sum(dim=1, keepdim=True) * from_a - weights @ from_b
                if a != b:
                    gradient[b] += weights.sum(dim=0).unsqueeze(1) * from_b - weights.t() @ from_a
        if gradient is not None:
            ctx.save_for_backward(gradient.to(columns.dtype))
        return total.to(columns.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        gradient: Tensor = ctx.saved_tensors[0]
        return gradient * grad_output
