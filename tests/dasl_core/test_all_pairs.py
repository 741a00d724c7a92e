"""Alignment of the distances of all inter-class pairs equals brute force, in value and gradient."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.regularizers import difference_alignment
from dasl_core.spec.regularizers.dar import ALL_PAIRS_LIMIT

Norm = Literal["l1", "sq_l2"]
NORMS: tuple[Norm, ...] = ("l1", "sq_l2")


def brute_force(phi: Tensor, labels: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """Compute value and gradient with a loop over all pairs of pairs, with sign(0) = 0 and 0/0 = 0."""
    count = len(phi)
    pairs = [(i, j) for i in range(count) for j in range(i) if labels[i] != labels[j]]
    left, right = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    between = phi[left] - phi[right]
    distances = between.square().sum(dim=1).sqrt()
    value, slopes = phi.new_zeros(()), torch.zeros_like(distances)
    for distance in distances:
        change = distances - distance
        value += (change.abs() if norm == "l1" else change.square()).sum() / 2
        slopes += change.sign() if norm == "l1" else 2 * change
    weights = torch.where(distances > 0, slopes / distances, 0).unsqueeze(1)
    gradient = torch.zeros_like(phi)
    gradient.index_add_(0, left, weights * between)
    gradient.index_add_(0, right, weights * between, alpha=-1)
    return value, gradient


def closed_form(phi: Tensor, labels: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    phi = phi.clone().requires_grad_()
    value = difference_alignment(phi, labels, norm=norm, reduction="sum", normalize=False)
    (gradient,) = torch.autograd.grad(value, phi)
    return value.detach(), gradient


def assert_equal_to_brute_force(phi: Tensor, labels: Tensor, norm: Norm) -> None:
    for ours, theirs in zip(
        closed_form(phi, labels, norm), brute_force(phi, labels, norm), strict=True
    ):
        largest = theirs.abs().max().item() if theirs.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12 * largest + 1e-15)


@settings(max_examples=150)
@given(
    rows=st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), max_size=9),
    classes=st.integers(1, 9),
    norm=st.sampled_from(NORMS),
)
def test_ties_and_equal_rows(rows: list[list[int]], classes: int, norm: Norm) -> None:
    phi = torch.tensor(rows, dtype=torch.float64).view(-1, 2)
    assert_equal_to_brute_force(phi, torch.arange(len(phi)) % classes, norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spread", [1.0, 1e-7])
@pytest.mark.parametrize("labels", [torch.arange(40), torch.arange(40) % 5, torch.arange(40) // 2])
def test_far_and_close_embeddings(norm: Norm, spread: float, labels: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    phi = 1 + spread * torch.randn(40, 6, generator=generator, dtype=torch.float64)
    phi[7] = phi[4]
    assert_equal_to_brute_force(phi, labels, norm)
    # Pairs of both kinds at once.
    phi[::2] = 3 + phi[::2]
    assert_equal_to_brute_force(phi, labels, norm)


@pytest.mark.parametrize("norm", NORMS)
def test_float32_is_exact_to_its_digits(norm: Norm) -> None:
    generator = torch.Generator().manual_seed(0)
    # A spread at which a Gram matrix in float32 has lost half of the distances' digits.
    phi = 1 + 4e-3 * torch.randn(90, 16, generator=generator)
    labels = torch.arange(45).repeat(2)
    for ours, exact in zip(
        closed_form(phi, labels, norm), closed_form(phi.double(), labels, norm), strict=True
    ):
        assert ours.dtype == torch.float32
        largest = exact.abs().max().item()
        # Of l1, a distance may change places with its neighbor.
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-5 * largest)


def test_zero_rows_give_no_nan() -> None:
    phi = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    phi[2:5] = 0
    phi.requires_grad_()
    value = difference_alignment(phi, torch.arange(8))
    value.backward()
    assert phi.grad is not None
    assert bool(phi.grad.isfinite().all())
    assert value > 0


def test_mean_divides_by_the_pairs_of_pairs() -> None:
    phi = F.normalize(torch.randn(6, 3, dtype=torch.float64), dim=1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])  # 12 inter-class pairs
    total = difference_alignment(phi, labels, reduction="sum")
    torch.testing.assert_close(difference_alignment(phi, labels), total / 66)


def test_labels_are_any_integers() -> None:
    phi = torch.randn(6, 3, dtype=torch.float64)
    labels = torch.tensor([-(2**62), 5, 2**62, -(2**62), 2**62, 2**62 + 1])
    expected = difference_alignment(phi, torch.tensor([0, 1, 2, 0, 2, 3]))
    assert torch.equal(difference_alignment(phi, labels), expected)


def test_more_embeddings_than_fit_are_refused() -> None:
    count = ALL_PAIRS_LIMIT + 1
    with pytest.raises(ValueError, match=r"^estimator: all pairs of 12,001 embeddings need .*GB"):
        difference_alignment(torch.zeros(count, 1), torch.arange(count))
