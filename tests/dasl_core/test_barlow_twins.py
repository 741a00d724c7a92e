"""Barlow Twins' loss against lightly's and the paper's formula, and its network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import BarlowTwinsLoss
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Step, build_method
from dasl_core.methods.barlow_twins import BarlowTwins, barlow_twins_loss
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.methods.barlow_twins import BarlowTwins as Settings
from dasl_core.spec.methods.barlow_twins import ResolvedBarlowTwins
from tests.support.methods import build_inputs
from tests.support.micro_batches import micro_batch_gradients, without_batch_statistics
from tests.support.setting_effects import HEAD, SettingEffects, other
from tests.support.training_world import resolved


def embeddings(samples: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(width, generator=generator, dtype=torch.float64) * 2
    return torch.randn(2, samples, width, generator=generator, dtype=torch.float64) * scales + 1


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(2, 9), st.floats(0, 30), st.integers(0, 2**31))
def test_equals_lightlys_value_and_gradient(
    samples: int, width: int, redundancy: float, seed: int
) -> None:
    z = embeddings(samples, width, seed)
    ours, reference = (z.clone().requires_grad_() for _ in range(2))
    loss = barlow_twins_loss(ours, redundancy)
    expected = BarlowTwinsLoss(redundancy)(reference[0], reference[1])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("samples", "width"), [(3, 7), (7, 3), (5, 5)])
def test_equals_the_papers_formula(samples: int, width: int) -> None:
    """Compare with equations 1 and 2, entry by entry, for variances far above batch_norm's epsilon."""
    z = embeddings(samples, width) * 1e4
    a, b = (view - view.mean(dim=0) for view in z)
    expected = 0.0
    for i in range(width):
        for j in range(width):
            lengths = a[:, i].square().sum().sqrt() * b[:, j].square().sum().sqrt()
            correlation = ((a[:, i] * b[:, j]).sum() / lengths).item()
            expected += (1 - correlation) ** 2 if i == j else 0.0051 * correlation**2
    assert barlow_twins_loss(z, 0.0051).item() == pytest.approx(expected, rel=1e-9)


def test_terms_equal_the_paper_on_known_correlations() -> None:
    """Check the terms on embeddings with known correlations."""
    orthogonal = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64) * 1e4
    assert barlow_twins_loss(torch.stack([orthogonal, orthogonal + 5]), 3).item() == pytest.approx(
        0
    )
    assert barlow_twins_loss(torch.stack([orthogonal, -orthogonal]), 3).item() == pytest.approx(8)
    same = orthogonal[:, :1].repeat(2, 1, 3)  # three equal coordinates: 6 correlations of 1
    assert barlow_twins_loss(same, 3).item() == pytest.approx(3 * 6)


def test_half_precision_is_computed_in_float32() -> None:
    z = embeddings(16, 8).bfloat16()
    exact = barlow_twins_loss(z.double(), 0.0051).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = barlow_twins_loss(z, 0.0051)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=1e-4)


def test_forward_returns_raw_embeddings_per_view() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    settings = ResolvedBarlowTwins(hidden_dim=5, projection_dim=4, redundancy=0.1, loss_scale=0.5)
    method = BarlowTwins(settings, build_inputs(backbone, 6))
    views = [torch.randn(7, 3, 2, 2) for _ in range(2)]
    outputs = method(views)
    together = method.projector(backbone(torch.cat(views)))
    torch.testing.assert_close(outputs["embeddings"].flatten(0, 1), together)
    loss = method.loss(outputs, Step(0, 1, 1, torch.arange(7)))
    torch.testing.assert_close(loss, 0.5 * barlow_twins_loss(outputs["embeddings"], 0.1))
    loss.backward()
    assert all(p.grad is not None for p in method.parameters())


def test_micro_batches_give_whole_batch_gradient(pictures: DatasetIndex) -> None:
    """Gradient caching: the statistics are those of the whole batch."""
    spec = resolved(pictures, method={"name": "barlow_twins"}, backbone={"name": "test_vit"})
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


def test_resolved_settings_are_those_of_the_authors(pictures: DatasetIndex) -> None:
    context = ResolveContext("resnet50", 2048, 224, None, 1_281_167, 2048, 1000)
    authors = Settings(separate_views=False).resolve(context)
    assert (authors.projection_dim, authors.hidden_dim) == (8192, 8192)
    assert authors.redundancy == 0.0051
    assert authors.loss_scale * 0.2 == pytest.approx(
        0.0048
    )  # the authors' rate of biases and norms
    small = Settings(separate_views=False).resolve(context._replace(features=512))
    assert (small.projection_dim, small.hidden_dim) == (2048, 2048)
    own = Settings(separate_views=False, projection_dim=6).resolve(context)
    assert (own.projection_dim, own.hidden_dim) == (6, 6)
    spec = resolved(
        pictures,
        method={"name": "barlow_twins"},
        backbone={"image_size": 96},
        train={"batch_size": 8, "optimizer": {"name": "lars"}},
    )
    assert (spec.augment.blur, spec.augment.solarize) == ((1.0, 0.1), (0.0, 0.2))
    assert spec.train.optimizer.lr == pytest.approx(0.2 * 8 / 256)
    assert spec.train.optimizer.weight_decay == 1e-6


@pytest.mark.parametrize("shape", [(8, 3), (1, 4, 3), (3, 4, 3)])
def test_loss_refuses_other_than_two_views(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="embeddings must have the shape"):
        barlow_twins_loss(torch.ones(shape), 0.0051)


def test_loss_refuses_one_sample() -> None:
    with pytest.raises(ValueError, match="embeddings must be of at least 2 samples"):
        barlow_twins_loss(torch.ones(2, 1, 3), 0.0051)


SETTING_EFFECTS = {
    "barlow_twins": SettingEffects(
        HEAD
        | {
            "separate_views": other(True, "outputs"),
            "redundancy": other(0.5, "loss"),
            "loss_scale": other(2.0, "loss"),
        },
        lambda s, _, history: (
            s.loss_scale * barlow_twins_loss(history[-1][1]["embeddings"], s.redundancy)
        ),
    )
}
