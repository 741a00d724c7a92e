"""HCL against its authors' formula, and in the limits of its settings."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.distributed import all_ranks, mean_over_ranks
from dasl_core.methods.hcl import hard_negative_loss
from tests.support.gloo_pool import GlooPool
from tests.support.setting_effects import HEAD, SettingEffects, effects


def naive(embeddings: Tensor, temperature: float, tau_plus: float, beta: float) -> float:
    """The authors' estimator with loops and plain exponentials, clamp included."""
    z = [row / row.norm() for row in embeddings.flatten(0, 1)]
    count = embeddings.shape[1]
    total = 0.0
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        positive = math.exp(float(z[i] @ z[j]) / temperature)
        negatives = [
            math.exp(float(z[i] @ z[k]) / temperature) for k in range(2 * count) if k not in (i, j)
        ]
        importance = [negative**beta for negative in negatives]
        mean = sum(importance) / len(importance)
        weighted = sum(w * q for w, q in zip(importance, negatives, strict=True)) / mean
        rest = (weighted - tau_plus * len(negatives) * positive) / (1 - tau_plus)
        rest = max(rest, len(negatives) * math.exp(-1 / temperature))
        total -= math.log(positive / (positive + rest))
    return total / (2 * count)


def pairs(samples: int, width: int, seed: int, alike: float = 0.0) -> Tensor:
    """(2, samples, width) float64; the two views share a part of their direction."""
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, samples, width, generator=generator, dtype=torch.float64)
    return views + alike * views[:1]


@settings(deadline=None, max_examples=50)
@given(
    st.integers(2, 6),
    st.integers(2, 5),
    st.floats(0.1, 2),
    st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
    st.floats(0, 3),
    st.integers(0, 10**6),
)
def test_equals_the_formula(
    samples: int, width: int, temperature: float, tau_plus: float, beta: float, seed: int
) -> None:
    embeddings = pairs(samples, width, seed, alike=seed % 3)
    assert hard_negative_loss(embeddings, temperature, tau_plus, beta).item() == pytest.approx(
        naive(embeddings, temperature, tau_plus, beta), rel=1e-8, abs=1e-8
    )


def test_large_beta_approaches_hardest_negative() -> None:
    embeddings = pairs(5, 4, 0)
    z = torch.nn.functional.normalize(embeddings, dim=-1).flatten(0, 1)
    similar = z @ z.T
    other = torch.arange(10).roll(5)
    positive = similar[torch.arange(10), other]
    similar[torch.arange(10), other] = similar[torch.arange(10), torch.arange(10)] = -2
    hardest = similar.max(dim=1).values
    expected = torch.log1p(8 * ((hardest - positive) / 0.5).exp()).mean()
    torch.testing.assert_close(hard_negative_loss(embeddings, 0.5, 0, 1e5), expected)


def test_gradient_equals_finite_differences() -> None:
    embeddings = pairs(4, 3, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: hard_negative_loss(e, 0.5, 0.05, 1.0), embeddings)


def test_clamped_estimate_has_gradient_of_positives_only() -> None:
    # No sample is opposite to another, and each equals its positive: the correction removes most negatives.
    embeddings = torch.eye(4, dtype=torch.float64).expand(2, 4, 4).clone().requires_grad_()
    loss = hard_negative_loss(embeddings, 0.2, 0.5, 1.0)
    bound = 6 * math.exp(-1 / 0.2)
    assert loss.item() == pytest.approx(math.log1p(bound / math.exp(1 / 0.2)))
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e-12  # the positives coincide


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_does_not_overflow_at_small_temperature(dtype: torch.dtype) -> None:
    # exp(1 / 0.02)^(1 + 3) is beyond float32 by far.
    embeddings = pairs(16, 8, 2).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = hard_negative_loss(embeddings, 0.02, 0.1, 3.0)
    assert loss.dtype == torch.float32
    exact = hard_negative_loss(embeddings.double(), 0.02, 0.1, 3.0)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-4)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert gradient.isfinite().all()


def loss_and_gradient(embeddings: np.ndarray, tau_plus: float) -> tuple[float, np.ndarray]:
    """Loss and gradient as in DDP: the mean of the ranks' losses is differentiated."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    own = torch.from_numpy(embeddings).chunk(world, dim=1)[rank].clone().requires_grad_()
    loss = hard_negative_loss(own, 0.3, tau_plus, 1.0, all_ranks())
    (loss / world).backward()
    assert own.grad is not None
    return float(mean_over_ranks(loss, all_ranks())), own.grad.numpy()


@pytest.mark.parametrize("tau_plus", [0.05, 0.6])  # at 0.6 the bound applies to some
def test_clamp_and_correction_use_global_batch(pool: GlooPool, tau_plus: float) -> None:
    embeddings = pairs(8, 5, 3, alike=1.0).numpy()
    value, reference = loss_and_gradient(embeddings, tau_plus)
    results = pool.call(4, loss_and_gradient, embeddings, tau_plus)
    assert max(abs(own - value) for own, _ in results) < 1e-12
    gradient = np.concatenate([part for _, part in results], axis=1)
    np.testing.assert_allclose(gradient, reference, rtol=0, atol=1e-12)
    # With only the rank's own negatives, loss and bound are those of small batches.
    alone = np.mean([loss_and_gradient(part, tau_plus)[0] for part in np.split(embeddings, 4, 1)])
    assert abs(alone - value) > 0.1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"embeddings": torch.ones(2, 1, 3)}, "embeddings must be of at least 2 samples"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0; given 0"),
        ({"temperature": math.nan}, "temperature must be .* given nan"),
        ({"tau_plus": 1.0}, "tau_plus must be at least 0 and below 1; given 1"),
        ({"tau_plus": -0.1}, "tau_plus must be"),
        ({"beta": -1.0}, "beta must be a finite number of at least 0"),
    ],
)
def test_invalid_arguments_are_named(change: dict[str, Any], expected: str) -> None:
    arguments: dict[str, Any] = {
        "embeddings": torch.ones(2, 3, 4),
        "temperature": 0.5,
        "tau_plus": 0.1,
        "beta": 1.0,
    }
    with pytest.raises(ValueError, match=expected):
        hard_negative_loss(**(arguments | change))


SETTING_EFFECTS = {
    "hcl": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("loss", temperature=0.7, tau_plus=0.3, beta=0.25),
        lambda s, _, history: hard_negative_loss(
            history[-1][1]["embeddings"], s.temperature, s.tau_plus, s.beta
        ),
    )
}
