"""DAR: the chain and its pairs, the estimators, the variants, and the guards against collapse."""

from itertools import combinations, permutations
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.regularizers import chain_length, ctv_norm, dar, difference_alignment
from dasl_core.regularizers import inter_class_chain as chain
from dasl_core.regularizers.dar import Estimator

Norm = Literal["l1", "l2", "sq_l2"]
Difference = Literal["abs", "signed", "distance"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "sq_l2")
DIFFERENCES: tuple[Difference, ...] = ("abs", "signed", "distance")


def random_embeddings(rows: int, width: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=300)
@given(labels=st.lists(st.integers(0, 4), max_size=25), seed=st.integers(0, 1000))
def test_chain_alternates_and_is_as_long_as_can_be(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels, dtype=torch.int64)
    left, right = chain(y, seeded(seed))
    assert bool((y[left] != y[right]).all())
    assert torch.equal(left[1:], right[:-1])
    samples = torch.cat([left[:1], right])
    assert len(set(samples.tolist())) == len(samples)
    largest = max((labels.count(label) for label in labels), default=0)
    longest = max(0, min(len(labels) - 1, 2 * (len(labels) - largest)))
    assert len(left) == chain_length(y) == longest


def test_chain_of_different_labels_is_the_random_permutation() -> None:
    left, right = chain(torch.arange(50) * 7, seeded(3))
    order = torch.randperm(50, generator=seeded(3))
    assert torch.equal(left, order[:-1])
    assert torch.equal(right, order[1:])


def test_chain_depends_on_the_generator_alone() -> None:
    y = torch.arange(40) // 2
    state = torch.get_rng_state()
    first, again, other = chain(y, seeded(1)), chain(y, seeded(1)), chain(y, seeded(2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_every_sample_is_linked_about_equally_often() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    links = torch.zeros(8, 8)
    for seed in range(3000):
        left, right = chain(y, seeded(seed))
        links[left, right] += 1
    links = links + links.t()
    inter_class = links[y[:, None] != y]
    # 7 links over 24 pairs, 3000 times: 875 each, standard deviation about 25
    assert (inter_class - 875).abs().max() < 130


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_chain_estimator_is_the_ctv_norm_of_consecutive_differences(
    norm: Norm, difference: Difference
) -> None:
    phi, y = random_embeddings(9), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 1])
    left, right = chain(y, seeded(5))
    unit = F.normalize(phi, dim=1)
    columns = unit[left] - unit[right]
    if difference == "abs":
        columns = columns.abs()
    elif difference == "distance":
        columns = columns.norm(dim=1, keepdim=True)
    chained: dict[str, Any] = {"norm": norm, "difference": difference, "estimator": "chain"}
    value = difference_alignment(phi, y, reduction="sum", generator=seeded(5), **chained)
    torch.testing.assert_close(value, ctv_norm(columns, norm))
    pairs = len(left) * (len(left) - 1) / 2
    mean = difference_alignment(phi, y, generator=seeded(5), **chained)
    torch.testing.assert_close(mean, value / pairs)


@pytest.mark.parametrize("norm", NORMS)
def test_full_estimator_is_brute_force_over_inter_class_pairs(norm: Norm) -> None:
    phi, y = random_embeddings(6), torch.tensor([0, 0, 1, 1, 2, 2])
    columns = [(phi[i] - phi[j]).abs() for i, j in combinations(range(6), 2) if bool(y[i] != y[j])]
    value = difference_alignment(
        phi, y, norm=norm, difference="abs", estimator="full", reduction="sum", normalize=False
    )
    torch.testing.assert_close(value, ctv_norm(torch.stack(columns), norm))


# Not "signed": its full value depends on the numbering of the samples, so it is no mean over orders.
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("difference", ["abs", "distance"])
@pytest.mark.parametrize("num_samples", [4, 5])
@pytest.mark.parametrize("norm", NORMS)
def test_unbiased_estimator_over_all_orders_averages_to_full(
    num_samples: int,
    norm: Norm,
    difference: Difference,
    reduction: Literal["sum", "mean"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phi, y = random_embeddings(num_samples, 3), torch.arange(num_samples)
    full = difference_alignment(
        phi, y, norm=norm, difference=difference, estimator="full", reduction=reduction
    )
    unbiased: list[Tensor] = []
    plain: list[Tensor] = []
    estimators: tuple[tuple[Estimator, list[Tensor]], ...] = (
        ("unbiased", unbiased),
        ("chain", plain),
    )
    for order in permutations(range(num_samples)):
        links = torch.tensor(order[:-1]), torch.tensor(order[1:])
        monkeypatch.setattr(dar, "inter_class_chain", lambda labels, generator, links=links: links)
        for estimator, values in estimators:
            values.append(
                difference_alignment(
                    phi,
                    y,
                    norm=norm,
                    difference=difference,
                    estimator=estimator,
                    reduction=reduction,
                )
            )
    torch.testing.assert_close(torch.stack(unbiased).mean(), full)
    assert not torch.allclose(torch.stack(plain).mean(), full, rtol=1e-4)


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3])
@pytest.mark.parametrize("estimator", ["chain", "unbiased", "full"])
def test_small_batches(num_samples: int, estimator: Literal["chain", "unbiased", "full"]) -> None:
    phi = random_embeddings(num_samples).requires_grad_()
    value = difference_alignment(phi, torch.arange(num_samples), estimator=estimator)
    value.backward()
    assert (value.item() > 0) == (num_samples == 3)
    assert phi.grad is not None
    assert bool(phi.grad.isfinite().all())


@pytest.mark.parametrize("estimator", ["chain", "unbiased", "full"])
def test_one_class_gives_a_differentiable_zero(
    estimator: Literal["chain", "unbiased", "full"],
) -> None:
    phi = random_embeddings(6).requires_grad_()
    value = difference_alignment(phi, torch.zeros(6, dtype=torch.int64), estimator=estimator)
    value.backward()
    assert value.item() == 0
    assert phi.grad is not None
    assert not phi.grad.any()


def test_renumbering_samples_moves_the_signed_value_only() -> None:
    phi, y = random_embeddings(8), torch.arange(8)
    order = torch.randperm(8, generator=seeded(0))
    for difference in DIFFERENCES:
        values = [
            difference_alignment(p, y, difference=difference, estimator="full").item()
            for p in (phi, phi[order])
        ]
        assert (abs(values[0] - values[1]) > 1e-3) == (difference == "signed")


def test_normalizing_guards_against_shrinking() -> None:
    phi, y = random_embeddings(12), torch.arange(12)
    guarded = [difference_alignment(s * phi, y) for s in (1.0, 0.01)]
    open_ = [difference_alignment(s * phi, y, normalize=False) for s in (1.0, 0.01)]
    torch.testing.assert_close(guarded[0], guarded[1])
    torch.testing.assert_close(open_[0] * 0.01, open_[1])
    # There is no radial gradient: the norm of an embedding cannot change.
    phi.requires_grad_()
    (gradient,) = torch.autograd.grad(difference_alignment(phi, y), phi)
    assert (gradient * phi).sum(dim=1).abs().max() < 1e-12
    assert gradient.abs().max() > 1e-3


def test_optima_of_elementwise_and_of_distance_alignment() -> None:
    simplex, y = torch.eye(6, dtype=torch.float64), torch.arange(6)
    collapsed = torch.ones(6, 6, dtype=torch.float64)
    for phi, difference, is_zero in (
        (simplex, "distance", True),
        (simplex, "abs", False),
        (collapsed, "abs", True),
        (collapsed, "distance", True),
    ):
        phi = phi.clone().requires_grad_()
        value = difference_alignment(phi, y, difference=difference, estimator="full")  # type: ignore[arg-type]
        assert (value.item() < 1e-12) == is_zero
        (gradient,) = torch.autograd.grad(value, phi)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("estimator", ["chain", "unbiased", "full"])
def test_gradient_equals_finite_differences(
    norm: Norm, difference: Difference, estimator: Literal["chain", "unbiased", "full"]
) -> None:
    phi, y = random_embeddings(7, 3).requires_grad_(), torch.tensor([0, 0, 1, 1, 2, 3, 4])
    assert torch.autograd.gradcheck(
        lambda x: difference_alignment(
            x, y, norm=norm, difference=difference, estimator=estimator, generator=seeded(2)
        ),
        phi,
    )


def test_computed_in_float32_under_autocast() -> None:
    phi, y = random_embeddings(32).float(), torch.arange(32)
    for difference in DIFFERENCES:
        outside = difference_alignment(phi, y, difference=difference, generator=seeded(0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = difference_alignment(phi, y, difference=difference, generator=seeded(0))
        assert inside.dtype == torch.float32
        assert inside == outside
    half = difference_alignment(phi.bfloat16(), y, generator=seeded(0))
    assert half.dtype == torch.float32
    assert difference_alignment(phi.double(), y).dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"embeddings": torch.zeros(4)}, r"embeddings must have the shape \(N, h\); given \(4,\)"),
        ({"labels": torch.arange(3)}, r"labels must have the shape \(4,\).*; given \(3,\)"),
        ({"labels": torch.zeros(4)}, r"labels must be integers; given torch.float32"),
        ({"labels": [0, 1, 2, 3]}, r"labels must be a tensor .*; given list"),
        ({"norm": "l0"}, r"norm must be one of .*; given 'l0'"),
        ({"difference": "squared"}, r"difference must be one of 'abs', 'signed', 'distance'"),
        ({"estimator": "exact"}, r"estimator must be one of 'auto', 'chain', 'unbiased'"),
        ({"reduction": "none"}, r"reduction must be one of 'sum', 'mean'; given 'none'"),
    ],
)
def test_invalid_arguments_are_named(change: dict[str, Any], expected: str) -> None:
    right = {"embeddings": torch.zeros(4, 2), "labels": torch.arange(4)}
    arguments: dict[str, Any] = right | change
    with pytest.raises(ValueError, match=expected):
        difference_alignment(**arguments)
