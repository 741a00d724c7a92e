"""VICReg's loss against lightly's, on both sides of its covariance, and its network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import VICRegLoss
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Step, build_method
from dasl_core.methods.vicreg import VICReg, correlation_penalty, vicreg_loss
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.methods.vicreg import ResolvedVICReg
from dasl_core.spec.methods.vicreg import VICReg as Settings
from tests.support.methods import build_inputs
from tests.support.micro_batches import micro_batch_gradients, without_batch_statistics
from tests.support.setting_effects import HEAD, SettingEffects, other
from tests.support.training_world import resolved


def embeddings(samples: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(width, generator=generator, dtype=torch.float64) * 2
    return torch.randn(2, samples, width, generator=generator, dtype=torch.float64) * scales + 1


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 9),
    st.integers(2, 9),
    st.tuples(*[st.floats(0, 30)] * 3),
    st.integers(0, 2**31),
)
def test_equals_lightlys_value_and_gradient(
    samples: int, width: int, weights: tuple[float, float, float], seed: int
) -> None:
    z = embeddings(samples, width, seed)
    ours, reference = (z.clone().requires_grad_() for _ in range(2))
    loss = vicreg_loss(ours, *weights)
    expected = VICRegLoss(*weights)(reference[0], reference[1])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("samples", "width"), [(3, 7), (7, 3), (5, 5)])
def test_covariances_are_those_of_different_coordinates(samples: int, width: int) -> None:
    x = embeddings(samples, width)[0]
    centred = x - x.mean(dim=0)
    covariance = torch.cov(x.T)
    others = ~torch.eye(width, dtype=torch.bool)
    expected = covariance[others].square().sum() / width
    torch.testing.assert_close(correlation_penalty(centred), expected, rtol=1e-12, atol=1e-12)


def test_terms_equal_the_paper_on_known_embeddings() -> None:
    """Check the terms on embeddings for which each can be computed by hand."""
    collapsed = torch.ones(2, 6, 4, dtype=torch.float64)
    # Variance: at zero variance, the root of epsilon is 0.01.
    assert vicreg_loss(collapsed, 25, 25, 1).item() == pytest.approx(25 * 0.99)
    spread = embeddings(50, 1)[:1] * 100
    assert vicreg_loss(spread.repeat(2, 1, 1), 25, 25, 1).item() == pytest.approx(0, abs=1e-5)
    assert vicreg_loss(torch.cat([spread, spread + 2]), 25, 25, 1).item() == pytest.approx(100)
    twice = spread.repeat(2, 1, 2)  # two equal coordinates
    variance = spread.var().item()
    assert vicreg_loss(twice, 0, 0, 1).item() == pytest.approx(2 * variance**2)


def test_half_precision_is_computed_in_float32() -> None:
    z = embeddings(16, 8).bfloat16()
    exact = vicreg_loss(z.double(), 25, 25, 1).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = vicreg_loss(z, 25, 25, 1)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=1e-4)


def test_forward_returns_raw_embeddings_per_view() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    method = VICReg(ResolvedVICReg(hidden_dim=5, projection_dim=4), build_inputs(backbone, 6))
    views = [torch.randn(7, 3, 2, 2) for _ in range(2)]
    outputs = method(views)
    together = method.expander(backbone(torch.cat(views)))
    torch.testing.assert_close(outputs["embeddings"].flatten(0, 1), together)
    loss = method.loss(outputs, Step(0, 1, 1, torch.arange(7)))
    torch.testing.assert_close(loss, vicreg_loss(outputs["embeddings"], 25, 25, 1))
    loss.backward()
    assert all(p.grad is not None for p in method.parameters())


def test_micro_batches_give_whole_batch_gradient(pictures: DatasetIndex) -> None:
    """Gradient caching: the statistics are those of the whole batch."""
    spec = resolved(pictures, method={"name": "vicreg"}, backbone={"name": "test_vit"})
    torch.manual_seed(0)
    method = without_batch_statistics(build_method(spec).double())
    assert not method.accumulates
    images = [torch.randn(8, 3, 16, 16, dtype=torch.float64) for _ in range(2)]
    whole, loss, _ = micro_batch_gradients(method, images, micro_batches=1)
    for micro_batches in (2, 4):
        gradients, same, _ = micro_batch_gradients(method, images, micro_batches)
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        assert gradients.keys() == whole.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-12)


def test_settings(pictures: DatasetIndex) -> None:
    context = ResolveContext("resnet50", 2048, 224, None, 1_281_167, 2048, 100)
    config = Settings(separate_views=False).resolve(context)
    assert (config.projection_dim, config.hidden_dim) == (8192, 8192)  # the paper's for a ResNet-50
    assert (
        Settings(separate_views=False).resolve(context._replace(features=512)).projection_dim
        == 2048
    )
    own = Settings(separate_views=False, projection_dim=6).resolve(context)
    assert (own.projection_dim, own.hidden_dim) == (6, 6)
    assert (config.invariance, config.variance, config.covariance) == (25, 25, 1)
    spec = resolved(
        pictures,
        method={"name": "vicreg"},
        backbone={"image_size": 96},
        train={"batch_size": 8, "optimizer": {"name": "lars"}},
    )
    assert (spec.augment.blur, spec.augment.solarize) == ((1.0, 0.1), (0.0, 0.2))
    assert spec.train.optimizer.lr == pytest.approx(0.2 * 8 / 256)
    assert spec.train.optimizer.weight_decay == 1e-6


def test_loss_refuses_one_sample() -> None:
    with pytest.raises(ValueError, match="embeddings must be of at least 2 samples"):
        vicreg_loss(torch.ones(2, 1, 3), 25, 25, 1)


SETTING_EFFECTS = {
    "vicreg": SettingEffects(
        HEAD
        | {
            "separate_views": other(True, "outputs"),
            "invariance": other(3.0, "loss"),
            "variance": other(5.0, "loss"),
            "covariance": other(7.0, "loss"),
        },
        lambda s, _, history: vicreg_loss(
            history[-1][1]["embeddings"], s.invariance, s.variance, s.covariance
        ),
    )
}
