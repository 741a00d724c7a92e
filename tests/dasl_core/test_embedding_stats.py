"""Norm distribution and angular update, against plain formulas and at angles where cosines fail."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dasl_core.evaluate import effective_rank
from dasl_core.regularizers import angular_update, norm_distribution
from dasl_core.train.step_metrics import rank_of_products, spread_statistics


def test_norm_distribution_equals_numpy() -> None:
    x = torch.randn(17, 5, generator=torch.Generator().manual_seed(0))
    norms = np.linalg.norm(x.double().numpy(), axis=1)
    expected = {
        "mean": norms.mean(),
        "std": norms.std(),
        "min": norms.min(),
        "max": norms.max(),
        "variation": norms.std() / norms.mean(),
    }
    statistics = norm_distribution(x)
    assert statistics.keys() == expected.keys()
    assert {name: value.item() for name, value in statistics.items()} == pytest.approx(expected)
    scaled = norm_distribution(10 * x)
    torch.testing.assert_close(scaled["variation"], statistics["variation"])


def test_norm_distribution_of_one_row_and_of_zeros() -> None:
    assert norm_distribution(torch.tensor([[3.0, 4.0]]))["std"] == 0
    assert norm_distribution(torch.zeros(4, 2))["variation"] == 0


@pytest.mark.parametrize("angle", [1e-12, 1e-9, 1e-4, 0.3, math.pi / 2, 3.0, math.pi - 1e-9])
def test_angle_is_exact_from_tiny_to_opposite(angle: float) -> None:
    before = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    after = 7 * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert angular_update(before, after).item() == pytest.approx(angle, rel=1e-6, abs=0)


def test_mean_angle_does_not_depend_on_norms() -> None:
    before = torch.tensor([[1.0, 0.0], [5.0, 0.0]])
    after = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert angular_update(before, after).item() == pytest.approx(math.pi / 4)
    assert angular_update(before, before) == 0


def test_angle_of_zero_row_counts_as_zero_or_right_angle() -> None:
    zeros, ones = torch.zeros(1, 3), torch.ones(1, 3)
    assert angular_update(zeros, zeros) == 0
    assert angular_update(zeros, ones).item() == pytest.approx(math.pi / 2)


@pytest.mark.parametrize("shape", [(9, 40), (40, 9), (2, 3)])
def test_spread_is_that_of_the_directions_of_the_first_view(shape: tuple[int, int]) -> None:
    views = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)) * 3
    directions = F.normalize(views[0], dim=1)
    statistics, products = spread_statistics(views)
    assert products is not None
    rank = rank_of_products(products)
    values = torch.linalg.svdvals(directions.double())
    share = values / values.sum()
    assert rank == pytest.approx(effective_rank(directions))
    assert math.log(rank) == pytest.approx(-float((share * share.log()).sum()))
    distances = torch.pdist(directions)
    torch.testing.assert_close(statistics["embedding_distance"], distances.mean())


def test_spread_of_a_collapse_and_of_numbers_that_are_none() -> None:
    nothing = (torch.zeros(1, 4, 3), torch.full((1, 4, 3), torch.nan))
    for views in (torch.ones(2, 5, 3), *nothing):
        _, products = spread_statistics(views)
        assert products is not None
        assert rank_of_products(products) == pytest.approx(1)
    assert spread_statistics(torch.ones(2, 1, 3)) == ({}, None)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"embeddings must have at least one row; given \(0, 3\)"):
        norm_distribution(torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"before must have the shape \(N, h\)"):
        angular_update(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"after must have the shape of before, \(2, 3\)"):
        angular_update(torch.zeros(2, 3), torch.zeros(3, 3))
