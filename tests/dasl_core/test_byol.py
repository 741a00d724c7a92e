"""BYOL's loss against lightly's, its teacher, and its settings."""

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity
from torch import Tensor, nn

from dasl_core.methods import Step
from dasl_core.methods.byol import BYOL, byol_loss
from dasl_core.models.ema import cosine_momentum
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.methods.byol import BYOL as Settings
from dasl_core.spec.methods.byol import ResolvedBYOL
from tests.support.methods import build_inputs
from tests.support.setting_effects import HEAD, SettingEffects, effects

Keep = Literal["student", "teacher"]


def method(momentum: float = 0.9, keep: Keep = "student") -> BYOL:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6))
    settings = ResolvedBYOL(hidden_dim=5, projection_dim=4, teacher_momentum=momentum, keep=keep)
    return BYOL(settings, build_inputs(backbone, 6))


def views(samples: int = 7) -> list[Tensor]:
    return [torch.randn(samples, 3, 2, 2) for _ in range(2)]


def step(index: int = 0, samples: int = 7) -> Step:
    return Step(index, 10, 5, torch.arange(samples))


# --- the loss


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(2, 8), st.integers(0, 2**31))
def test_equals_lightlys(samples: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, t = torch.randn(2, 2, samples, width, generator=generator, dtype=torch.float64)
    theirs = NegativeCosineSimilarity()
    # 2 - 2 cos, once for each direction.
    expected = 4 + 2 * (theirs(p[0], t[1]) + theirs(p[1], t[0]))
    torch.testing.assert_close(byol_loss(p, t), expected, rtol=0, atol=1e-12)


def test_loss_crosses_views_without_gradient_to_targets() -> None:
    p = torch.randn(2, 4, 3, requires_grad=True)
    t = p.detach().clone().requires_grad_()
    assert byol_loss(p, t.flip(0)).item() == pytest.approx(0, abs=1e-6)
    loss = byol_loss(p, t)
    assert loss.item() > 0.1
    loss.backward()
    assert p.grad is not None
    assert t.grad is None


# --- the network and its teacher


def test_forward_returns_raw_predictions_and_teacher_projections() -> None:
    byol, images = method(), views()
    outputs = byol(images)
    assert outputs["embeddings"].shape == outputs["targets"].shape == (2, 7, 4)
    together = byol.predictor(byol.projector(byol.backbone(torch.cat(images))))
    torch.testing.assert_close(outputs["embeddings"].flatten(0, 1), together)
    assert (outputs["embeddings"].norm(dim=-1) - 1).abs().max() > 1e-3
    # At first a copy of the student, with statistics of its own batch.
    projections = byol.projector(byol.backbone(torch.cat(images)))
    torch.testing.assert_close(outputs["targets"].flatten(0, 1), projections)
    assert not outputs["targets"].requires_grad
    assert byol.teacher.training


def test_step_trains_student_and_predictor_only() -> None:
    byol = method()
    byol.loss(byol(views()), step()).backward()
    for name, parameter in byol.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name


def test_teacher_changes_only_in_after_update() -> None:
    byol, images = method(momentum=0.9), views()
    optimizer = torch.optim.SGD(byol.parameters(), lr=0.5)
    before = [p.clone() for p in byol.teacher.parameters()]
    byol.loss(byol(images), step()).backward()
    byol.before_update(step())
    optimizer.step()
    assert all(map(torch.equal, byol.teacher.parameters(), before))
    byol.after_update(step(index=3))
    momentum = cosine_momentum(0.9, 3, 10)
    students = [*byol.backbone.parameters(), *byol.projector.parameters()]
    for teacher, old, student in zip(byol.teacher.parameters(), before, students, strict=True):
        torch.testing.assert_close(teacher, momentum * old + (1 - momentum) * student)
    assert byol.metrics({}, step(index=3))["teacher_momentum"].item() == pytest.approx(momentum)


@pytest.mark.parametrize("keep", ["student", "teacher"])
def test_keep_selects_exported_backbone(keep: Keep) -> None:
    byol = method(keep=keep)
    kept = byol.backbone if keep == "student" else byol.teacher.backbone
    assert byol.representation is kept


# --- settings


def settled(epochs: int = 9, features: int = 512, **changes: Any) -> ResolvedBYOL:
    context = ResolveContext("resnet50", features, 32, None, 1000, 64, epochs)
    settled = Settings(separate_views=False, **changes).resolve(context)
    assert isinstance(settled, ResolvedBYOL)
    return settled


@pytest.mark.parametrize(
    ("epochs", "momentum"),
    [(1, 0.97), (40, 0.97), (70, 0.98), (100, 0.99), (300, 0.99), (1000, 0.996), (9999, 0.996)],
)
def test_momentum_schedule_spans_training(epochs: int, momentum: float) -> None:
    assert settled(epochs).teacher_momentum == pytest.approx(momentum)
    assert settled(epochs, teacher_momentum=0.5).teacher_momentum == 0.5


def test_head_widths_grow_with_backbone() -> None:
    assert settled().hidden_dim == 1024
    assert settled(features=2048).hidden_dim == 4096  # as in the paper, with a ResNet-50
    assert settled(features=2048, hidden_dim=7).hidden_dim == 7


@pytest.mark.parametrize("shape", [(2, 1, 5), (2, 4, 1), (1, 4, 5), (4, 5)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="targets must have the shape of predictions"):
        byol_loss(torch.ones(2, 4, 5), torch.ones(shape))


SETTING_EFFECTS = {
    "byol": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("teacher", teacher_momentum=0.5)
        | effects("kept", keep="teacher"),
        lambda s, _, history: byol_loss(history[-1][1]["embeddings"], history[-1][1]["targets"]),
    )
}
