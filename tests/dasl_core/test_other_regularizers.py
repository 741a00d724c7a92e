"""Regularizers besides DAR and SEC: each against its formula or lightly's code, and on any number of ranks."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import KoLeoLoss, SIGReg
from lightly.loss import visreg_loss as lightlys
from torch import Tensor

from dasl_core.distributed import all_ranks, gather_views, rank, world_size
from dasl_core.regularizers import (
    koleo_loss,
    negative_margin_loss,
    sigreg_loss,
    uniformity_loss,
    visreg_loss,
)
from dasl_core.regularizers.base import random_directions
from tests.support.gloo_pool import GlooPool

OF_PAIRS = {
    "uniformity_loss": uniformity_loss,
    "koleo_loss": koleo_loss,
    "negative_margin_loss": negative_margin_loss,
}
OF_SLICES = {"sigreg_loss": sigreg_loss, "visreg_loss": visreg_loss}


def embeddings_of(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_gradient(loss: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(loss, x)
    return loss.detach(), gradient


def assert_same(ours: Tensor, reference: Tensor, x: Tensor, rtol: float = 1e-9) -> None:
    """Check value and gradient."""
    torch.testing.assert_close(
        with_gradient(ours, x), with_gradient(reference, x), rtol=rtol, atol=1e-10
    )


# --- against references


def uniformity_reference(x: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Compute Wang and Isola 2020, eq. 4."""
    return torch.stack([(-2 * (x[i] - x[j]).square().sum()).exp() for i, j in pairs]).mean().log()


def negative_margin_reference(x: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    return torch.stack([F.relu(1.4 - (x[i] - x[j]).norm()) for i, j in pairs]).mean()


def koleo_reference(x: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Compute Sablayrolles et al. 2019, eq. 2."""
    losses = []
    for i in range(len(x)):
        others = [b if a == i else a for a, b in pairs if i in (a, b)]
        if others:
            losses.append(-torch.stack([(x[i] - x[j]).norm() for j in others]).min().log())
    return torch.stack(losses).mean()


REFERENCES: dict[str, Callable[[Tensor, list[tuple[int, int]]], Tensor]] = {
    "uniformity_loss": uniformity_reference,
    "koleo_loss": koleo_reference,
    "negative_margin_loss": negative_margin_reference,
}


@pytest.mark.parametrize("name", OF_PAIRS)
@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(0, 10**6))
def test_loss_of_pairs_equals_formula(name: str, labels: list[int], seed: int) -> None:
    x = embeddings_of(len(labels), 3, seed=seed)
    loss = OF_PAIRS[name](x, torch.tensor(labels))
    pairs = [(i, j) for i, j in combinations(range(len(labels)), 2) if labels[i] != labels[j]]
    if not pairs:
        value, gradient = with_gradient(loss, x)
        assert value == gradient.abs().sum() == 0
        return
    # KoLeo's 1e-8 matter only for coincident embeddings.
    reference = REFERENCES[name](x / x.norm(dim=1, keepdim=True), pairs)
    assert_same(loss, reference, x, rtol=1e-5 if name == "koleo_loss" else 1e-8)


def test_koleo_equals_lightlys() -> None:
    x = embeddings_of(9, 5)
    assert_same(koleo_loss(x, torch.arange(9)), KoLeoLoss()(x), x)


@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 5)])
def test_sigreg_equals_lightlys(shape: tuple[int, ...]) -> None:
    x = embeddings_of(*shape)
    theirs = SIGReg(num_vectors=7).double()
    directions = random_directions(x, 7, seeded())
    with patch.object(theirs, "_generate_unit_vectors", lambda *_: directions):
        # Their grid is rounded to float32.
        assert_same(sigreg_loss(x, slices=7, generator=seeded()), theirs(x), x, rtol=1e-5)


@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 5)])
def test_visreg_equals_lightlys(shape: tuple[int, ...]) -> None:
    x = embeddings_of(*shape)
    directions = random_directions(x, 7, seeded())
    with patch.object(torch, "randn", lambda *_, **__: directions):
        shape_loss = lightlys.visreg_shape_loss(x, 7)
    theirs = shape_loss + lightlys.visreg_scale_loss(x) + lightlys.visreg_center_loss(x)
    # Their quantiles are rounded to float32.
    assert_same(visreg_loss(x, slices=7, generator=seeded()), theirs, x, rtol=1e-4)


# --- properties


@pytest.mark.parametrize("name", OF_SLICES)
def test_gaussian_embeddings_have_smaller_loss_than_others(name: str) -> None:
    gaussian = embeddings_of(500, 4).detach()
    values = {
        kind: float(OF_SLICES[name](x, slices=64, generator=seeded()))
        for kind, x in {
            "gaussian": gaussian,
            "shifted": gaussian + 1,
            "wide": 3 * gaussian,
            "flat": gaussian * torch.tensor([1.0, 1, 1, 0]),
            "sphere": 2 * F.normalize(gaussian.sign() + 0.01 * gaussian, dim=1),
        }.items()
    }
    assert min(values, key=lambda kind: values[kind]) == "gaussian"


@pytest.mark.parametrize("name", [*OF_PAIRS, *OF_SLICES])
def test_coincident_embeddings_have_finite_gradient(name: str) -> None:
    x = torch.ones(6, 4, requires_grad=True)
    loss = OF_PAIRS[name](x, torch.arange(6)) if name in OF_PAIRS else OF_SLICES[name](x)
    assert with_gradient(loss, x)[1].isfinite().all()


@pytest.mark.parametrize("name", [*OF_PAIRS, *OF_SLICES])
def test_half_precision_is_computed_in_float32(name: str) -> None:
    x = embeddings_of(6, 4).detach().bfloat16()

    def loss(x: Tensor) -> Tensor:
        if name in OF_PAIRS:
            return OF_PAIRS[name](x, torch.arange(6))
        return OF_SLICES[name](x, slices=5, generator=seeded())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(x)
    torch.testing.assert_close(half, loss(x.float()), rtol=0, atol=0)


def test_uniformity_is_finite_where_all_potentials_underflow() -> None:
    x = torch.cat([torch.eye(3), -torch.eye(3)]).requires_grad_()
    value, gradient = with_gradient(uniformity_loss(x, torch.arange(6), t=60.0), x)
    # 24 of the 30 ordered pairs are orthogonal, at a squared distance of 2; those of opposites vanish.
    assert value.item() == pytest.approx(math.log(24 / 30) - 120, rel=1e-6)
    assert gradient.isfinite().all()


def test_negative_margin_of_near_embeddings_is_accurate_in_float32() -> None:
    x = torch.ones(4, 8) + 1e-3 * embeddings_of(4, 8).detach().float()
    exact = negative_margin_loss(x.double(), torch.arange(4)).item()
    assert negative_margin_loss(x, torch.arange(4)).item() == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: uniformity_loss(torch.zeros(3), torch.arange(3)),
            "embeddings must have the shape",
        ),
        (
            lambda: koleo_loss(torch.zeros(3, 2), torch.arange(4)),
            r"labels must have the shape \(3,\)",
        ),
        (lambda: uniformity_loss(torch.zeros(3, 2), torch.arange(3), t=0), "t must be above 0"),
        (
            lambda: negative_margin_loss(torch.zeros(3, 2), torch.arange(3), margin=-1),
            "margin must be above 0",
        ),
        (lambda: sigreg_loss(torch.zeros(3)), "embeddings must have the shape"),
        (lambda: visreg_loss(torch.zeros(3, 2), slices=0), "slices must be at least 1"),
    ],
)
def test_invalid_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- on any number of ranks


def gradient_of_share(name: str, embeddings: np.ndarray) -> np.ndarray:
    """The gradient of this rank's embeddings, as DDP averages it."""
    own = torch.from_numpy(embeddings).chunk(world_size(), dim=1)[rank()].clone().requires_grad_()
    gathered = gather_views(own, all_ranks())
    if name in OF_PAIRS:
        labels = torch.arange(embeddings.shape[1]).repeat(len(gathered))
        loss = OF_PAIRS[name](gathered.flatten(0, 1), labels)
    else:
        loss = OF_SLICES[name](gathered, slices=5, generator=seeded())
    return with_gradient(loss / world_size(), own)[1].numpy()


@pytest.mark.parametrize("name", [*OF_PAIRS, *OF_SLICES])
def test_ranks_compute_gradient_of_one_process(pool: GlooPool, name: str) -> None:
    embeddings = embeddings_of(2, 12, 5).detach().numpy()
    alone = gradient_of_share(name, embeddings)
    together = np.concatenate(pool.call(3, gradient_of_share, name, embeddings), axis=1)
    assert np.abs(alone).max() > 1e-3
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-13)
