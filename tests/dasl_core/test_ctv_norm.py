"""`ctv_norm` against brute force, in value and gradient, at any size and precision."""

from itertools import combinations
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.regularizers import ctv_norm, norms
from tests.support.largest_tensor import LargestTensor

Norm = Literal["l1", "l2", "sq_l2"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "sq_l2")


def length(difference: Tensor, norm: str) -> Tensor:
    if norm == "l1":
        return difference.abs().sum()
    squared = difference.square().sum()
    return squared if norm == "sq_l2" else squared.sqrt()


def brute_force(columns: Tensor, norm: str) -> Tensor:
    total = columns[:0].sum()
    for a, b in combinations(range(len(columns)), 2):
        total = total + length(columns[a] - columns[b], norm)
    return total


def brute_force_gradient(columns: Tensor, norm: str) -> Tensor:
    """Compute the gradient from the definition, with sign(0) = 0 and 0/|0| = 0."""
    gradient = torch.zeros_like(columns)
    for a, b in combinations(range(len(columns)), 2):
        difference = columns[a] - columns[b]
        if norm == "l1":
            slope = difference.sign()
        elif norm == "sq_l2":
            slope = 2 * difference
        elif difference.any():
            slope = difference / difference.norm()
        else:
            slope = torch.zeros_like(difference)
        gradient[a] += slope
        gradient[b] -= slope
    return gradient


@st.composite
def matrices(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw (H, h) matrices, some from a small grid, where ties and equal columns are common."""
    rows, columns = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if draw(st.booleans()):
        return torch.randint(-2, 3, (rows, columns), generator=generator).to(dtype)
    return torch.randn(rows, columns, generator=generator, dtype=dtype)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=60)
@given(columns=matrices())
def test_value_and_gradient_equal_brute_force(norm: Norm, columns: Tensor) -> None:
    columns.requires_grad_()
    value = ctv_norm(columns, norm)
    torch.testing.assert_close(value, brute_force(columns, norm).detach(), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(3 * value, columns)
    expected = 3 * brute_force_gradient(columns.detach(), norm)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=60)
@given(columns=matrices(torch.float32))
def test_float32_is_as_exact_as_float32_can_be(norm: Norm, columns: Tensor) -> None:
    columns.requires_grad_()
    value = ctv_norm(columns, norm)
    (gradient,) = torch.autograd.grad(value, columns)
    exact = columns.detach().double()
    assert value.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(value.double(), brute_force(exact, norm), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradient.double(), brute_force_gradient(exact, norm), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("norm", NORMS)
def test_no_tensor_grows_with_the_number_of_pairs(
    norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "_L2_TILE", 8)
    columns = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with LargestTensor() as largest:
        ctv_norm(columns, norm).backward()
    assert (
        0 < largest.entries <= columns.numel()
    )  # all pairs are 200 * 200 of them, or 5 times that


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_fewer_than_two_columns_give_a_differentiable_zero(
    norm: Norm, count: int, reduction: Literal["sum", "mean"]
) -> None:
    columns = torch.ones(count, 3, requires_grad=True)
    value = ctv_norm(columns, norm, reduction)
    value.backward()
    assert value.item() == 0
    assert columns.grad is not None
    assert not columns.grad.any()


@pytest.mark.parametrize("norm", NORMS)
def test_constant_columns_are_in_the_kernel_with_a_zero_gradient(norm: Norm) -> None:
    columns = torch.full((7, 3), 0.1).requires_grad_()
    value = ctv_norm(columns, norm)
    value.backward()
    assert abs(value.item()) < 1e-12
    assert columns.grad is not None
    torch.testing.assert_close(columns.grad, torch.zeros(7, 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_mean_divides_by_the_number_of_pairs(norm: Norm) -> None:
    columns = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ctv_norm(columns, norm, "mean"), ctv_norm(columns, norm) / 36)


def test_l1_value_keeps_its_digits_far_from_the_origin() -> None:
    # Summing (2k - H - 1) m_(k) in float32 would lose nearly all of them.
    near = torch.rand(4096, 2, generator=torch.Generator().manual_seed(0)).mul(64).round() / 64
    torch.testing.assert_close(ctv_norm(near + 1024), ctv_norm(near.double()).float())


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("tile", [1, 5, 13, 30, 1024])
def test_tiles_change_nothing(norm: Norm, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_L1_ENTRIES", tile)
    monkeypatch.setattr(norms, "_L2_TILE", tile)
    columns = torch.randn(13, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    columns[5] = columns[2]
    columns.requires_grad_()
    value = ctv_norm(columns, norm)
    (gradient,) = torch.autograd.grad(value, columns)
    torch.testing.assert_close(value, brute_force(columns, norm).detach())
    torch.testing.assert_close(gradient, brute_force_gradient(columns.detach(), norm))


def test_l2_gradient_of_close_columns_far_from_the_origin() -> None:
    base = torch.full((1, 8), 3.0)
    columns = (base + 1e-6 * torch.randn(6, 8, generator=torch.Generator().manual_seed(3))).float()
    columns.requires_grad_()
    (gradient,) = torch.autograd.grad(ctv_norm(columns, "l2"), columns)
    expected = brute_force_gradient(columns.detach().double(), "l2").float()
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_float32_under_autocast_and_for_half_inputs(norm: Norm) -> None:
    columns = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ctv_norm(columns, norm)
    assert inside.dtype == torch.float32
    assert inside == ctv_norm(columns, norm)
    half = columns.bfloat16().requires_grad_()
    value = ctv_norm(half, norm)
    value.backward()
    assert value.dtype == torch.float32
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((torch.zeros(3, 2), "l3"), r"norm must be one of 'l1', 'l2', 'sq_l2'; given 'l3'"),
        ((torch.zeros(3, 2), "l1", "max"), r"reduction must be one of .*; given 'max'"),
        ((torch.zeros(3),), r"columns must have the shape \(H, h\); given \(3,\)"),
        ((torch.zeros(3, 2).int(),), r"columns must hold real .*; given torch.int32"),
        (([[1.0]],), r"columns must be a tensor of shape \(H, h\); given list"),
    ],
)
def test_invalid_arguments_are_named(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ctv_norm(*arguments)
