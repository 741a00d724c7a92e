"""SEC: value, state and gradient."""

import pytest
import torch
from torch import Tensor

from dasl_core.regularizers import SphericalEmbeddingConstraint


def batch(seed: int, rows: int = 8, width: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)


def test_value_with_momentum_follows_recursion() -> None:
    constraint = SphericalEmbeddingConstraint(momentum=0.3)
    mu = 0.0
    for step in range(4):
        f = batch(step)
        r = f.norm(dim=1)
        mu = r.mean().item() if step == 0 else 0.7 * mu + 0.3 * r.mean().item()
        torch.testing.assert_close(constraint(f), (r - mu).square().mean())
        assert constraint.mean.item() == pytest.approx(mu, rel=1e-14)


@pytest.mark.parametrize("momentum", [1.0, 0.2])
def test_gradient_is_radial_and_equals_formula(momentum: float) -> None:
    constraint = SphericalEmbeddingConstraint(momentum=momentum)
    constraint(batch(1))
    f = batch(2).requires_grad_()
    (gradient,) = torch.autograd.grad(constraint(f), f)
    r = f.detach().norm(dim=1, keepdim=True)
    radial = f.detach() / r
    torch.testing.assert_close(gradient, 2 / len(f) * (r - constraint.mean) * radial)
    tangential = gradient - (gradient * radial).sum(dim=1, keepdim=True) * radial
    assert tangential.abs().max() < 1e-15


def test_zero_target_gives_mean_squared_norm() -> None:
    f = batch(0).requires_grad_()
    value = SphericalEmbeddingConstraint("zero")(f)
    torch.testing.assert_close(value, f.square().sum(dim=1).mean())
    (gradient,) = torch.autograd.grad(value, f)
    torch.testing.assert_close(gradient, 2 / len(f) * f.detach())


@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_batch_with_nan_does_not_change_mean(momentum: float) -> None:
    constraint = SphericalEmbeddingConstraint(momentum=momentum)
    broken = batch(0)
    broken[3, 1] = float("nan")
    assert constraint(broken).isnan()
    assert not constraint.initialized
    constraint(batch(1))
    before = constraint.mean.clone()
    assert constraint(broken).isnan()
    assert constraint.mean == before
    assert constraint(batch(2)).isfinite()


def test_evaluation_mode_does_not_change_mean() -> None:
    constraint = SphericalEmbeddingConstraint(momentum=0.5)
    constraint(batch(0))
    before = constraint.mean.clone()
    f = batch(1)
    torch.testing.assert_close(constraint.eval()(f), (f.norm(dim=1) - before).square().mean())
    assert constraint.mean == before


def test_computed_in_float32_under_autocast_and_finite_at_zero() -> None:
    f = batch(0).float()
    outside = SphericalEmbeddingConstraint()(f)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = SphericalEmbeddingConstraint()(f)
    assert inside.dtype == torch.float32
    assert inside == outside
    f[0] = 0
    f.requires_grad_()
    (gradient,) = torch.autograd.grad(SphericalEmbeddingConstraint()(f), f)
    assert bool(gradient.isfinite().all())


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="target must be one of 'mean', 'zero'; given 'max'"):
        SphericalEmbeddingConstraint("max")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"momentum must be a number above 0, at most 1; given 1\.5"
    ):
        SphericalEmbeddingConstraint(momentum=1.5)
    with pytest.raises(ValueError, match=r"embeddings must have the shape \(N, h\); given \(3,\)"):
        SphericalEmbeddingConstraint()(torch.zeros(3))
    with pytest.raises(ValueError, match="embeddings must have at least one row"):
        SphericalEmbeddingConstraint()(torch.zeros(0, 3))
