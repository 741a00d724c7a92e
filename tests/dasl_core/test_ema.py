"""The EMA teacher: a frozen copy of which only the parameters are averaged."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm import create_model
from timm.layers import DropPath
from torch import nn

from dasl_core.models.ema import Teacher, cosine_momentum


def network() -> tuple[nn.Module, nn.Module]:
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5))
    return backbone, nn.Linear(16, 3)


def shift(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by)


def test_teacher_starts_as_independent_copy() -> None:
    backbone, head = network()
    teacher = Teacher(backbone, head)
    students = [*backbone.parameters(), *head.parameters()]
    pairs = list(zip(teacher.parameters(), students, strict=True))
    assert all(torch.equal(t, s) and t.data_ptr() != s.data_ptr() for t, s in pairs)
    assert not any(t.requires_grad for t, _ in pairs)
    assert all(s.requires_grad for _, s in pairs)
    assert not teacher(torch.randn(5, 1, 4, 4)).requires_grad


@given(st.floats(0, 1), st.integers(1, 4))
def test_update_equals_formula_with_head(momentum: float, times: int) -> None:
    backbone, head = network()
    teacher = Teacher(backbone, head)
    expected = [parameter.double() for parameter in teacher.parameters()]
    at = [parameter.data_ptr() for parameter in teacher.parameters()]
    for _ in range(times):
        for student in (backbone, head):
            shift(student, 0.25)
        students = [*backbone.parameters(), *head.parameters()]
        expected = [
            momentum * t + (1 - momentum) * s.detach().double()
            for t, s in zip(expected, students, strict=True)
        ]
        teacher.update(backbone, head, momentum=momentum)
    for parameter, value in zip(teacher.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.double(), value, rtol=1e-5, atol=1e-6)
    assert at == [parameter.data_ptr() for parameter in teacher.parameters()]  # in place


def test_teacher_has_its_own_batch_statistics() -> None:
    backbone, head = network()
    teacher = Teacher(backbone, head).train()
    mean = teacher.backbone.get_buffer("1.running_mean")
    backbone(torch.randn(8, 1, 4, 4) + 3)
    teacher.update(backbone, head, momentum=0.0)
    assert torch.equal(mean, torch.zeros(4))  # the student's running mean was not copied
    images = torch.randn(8, 1, 4, 4) * 5 - 2
    convolution, norm, *_ = teacher.backbone.children()
    normalised = norm(convolution(images))
    # The teacher uses statistics of its own batch, not running ones.
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3)), torch.zeros(4), rtol=0, atol=1e-5)
    assert not torch.equal(mean, torch.zeros(4))


def test_teacher_has_no_dropout() -> None:
    vit = create_model("test_vit", num_classes=0, drop_path_rate=0.5, proj_drop_rate=0.5)
    images = torch.randn(4, 3, 160, 160)
    teacher = Teacher(vit, nn.Dropout(0.5)).train()
    vit.train()
    assert torch.equal(teacher(images), teacher(images))
    assert not torch.equal(vit(images), vit(images))
    paths = [layer.drop_prob for layer in vit.modules() if isinstance(layer, DropPath)]
    assert max(paths) == 0.5  # the student's stay


def test_momentum_follows_cosine_of_the_paper() -> None:
    assert cosine_momentum(0.97, 0, 100) == pytest.approx(0.97)
    assert cosine_momentum(0.97, 50, 100) == pytest.approx(0.985)
    assert cosine_momentum(0.97, 100, 100) == 1
    assert cosine_momentum(0.97, 25, 100) == pytest.approx(
        1 - 0.03 * (math.cos(math.pi / 4) + 1) / 2
    )
    values = [cosine_momentum(0.9, step, 20) for step in range(21)]
    assert values == sorted(values)
