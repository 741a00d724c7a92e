"""Optimizers of a spec, and the schedule of the learning rate."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from dasl_core.methods import build_method
from dasl_core.spec import DatasetFacts, JobSpec, ResolvedTrain, SpecError, resolve
from dasl_core.train.optim import (
    build_optimizer,
    learning_rate,
    learning_rate_factors,
    set_schedules,
    weight_decay,
)
from tests.support.training_world import tiny_spec


def train_settings(**optimizer: object) -> ResolvedTrain:
    """Ten epochs, two of them warm-up, with the optimizer's settings changed."""
    usual = {"name": "sgd", "lr": 0.5, "weight_decay": 0.04, "weight_decay_end": 0.4}
    settings = {"epochs": 10, "warmup_epochs": 2.0, "optimizer": usual | optimizer}
    facts = DatasetFacts(num_images=100, num_classes=None, median_size=32)
    return resolve(JobSpec.model_validate({"dataset": "x", "train": settings}), facts).train


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.ones(1, 4, 4))
        self.linear = nn.Linear(4, 4)

    def no_weight_decay(self) -> set[str]:
        return {"position"}


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw", "adam"])
def test_biases_and_exempt_parameters_are_not_decayed(name: str) -> None:
    model = nn.ModuleDict({"backbone": Part(), "norm": nn.BatchNorm1d(4)})
    chosen = train_settings(name=name, weight_decay=0.25).optimizer
    optimizer = build_optimizer(chosen, model, {})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(parameter)] for parameter in group["params"]}
        for group in optimizer.param_groups
    }
    assert groups == {
        0.25: {"backbone.linear.weight"},
        0.0: {"backbone.position", "backbone.linear.bias", "norm.weight", "norm.bias"},
    }


@pytest.mark.parametrize("decay", [0.0, 1e-6])
def test_lars_adapts_only_weights(decay: float) -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(
        train_settings(name="lars", lr=1.0, weight_decay=decay, momentum=0.0).optimizer, model, {}
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    optimizer.step()
    weight, bias = (
        (parameter.detach() - was).norm().item()
        for parameter, was in zip(model.parameters(), before, strict=True)
    )
    # You et al. 2017: a step of 0.001 of the weight's norm, however large the gradient.
    assert weight == pytest.approx(0.001 * before[0].norm().item(), rel=1e-3)
    assert bias == pytest.approx(100 * math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize(("gradient", "adapted"), [(100.0, True), (1e-6, False)])
def test_larc_limits_the_rate_of_lars(gradient: float, adapted: bool) -> None:
    model = nn.Linear(3, 2, bias=False)
    settings = train_settings(name="lars", lr=1.0, weight_decay=0.0, momentum=0.0, larc=0.02)
    before = model.weight.detach().clone()
    model.weight.grad = torch.full_like(before, gradient)
    build_optimizer(settings.optimizer, model, {}).step()
    step = (model.weight.detach() - before).norm().item()
    expected = 0.02 * before.norm().item() if adapted else gradient * math.sqrt(6)
    assert step == pytest.approx(expected, rel=0.02)


def test_schedule_warms_up_then_falls_to_zero() -> None:
    train = train_settings(lr=1.0)
    rates = [learning_rate(step, 5, train) for step in range(50)]
    assert max(rates) == rates[10] == 1.0
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[30] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert 0 < rates[-1] < 0.01


def test_warm_up_of_whole_run_reaches_peak() -> None:
    train = train_settings(lr=1.0).model_copy(update={"epochs": 1, "warmup_epochs": 1.0})
    assert [learning_rate(step, 3, train) for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1])


# --- schedules and factors


def test_learning_rate_ends_at_lr_end() -> None:
    train = train_settings(lr_end=0.1)
    rates = [learning_rate(step, 5, train) for step in range(50)]
    assert max(rates) == rates[10] == 0.5
    assert rates[-1] == pytest.approx(0.05, rel=0.05)
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))


@pytest.mark.parametrize(
    ("epochs", "milestones"), [(3, [15, 30, 45]), (2.5, [12, 25, 37]), ([4, 6.45], [20, 32])]
)
def test_step_decay_is_that_of_torch(epochs: Any, milestones: list[int]) -> None:
    train = train_settings(step_decay={"epochs": epochs, "factor": 0.5})
    train = train.model_copy(update={"warmup_epochs": 0.0})
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.5)
    for step in range(50):
        assert learning_rate(step, 5, train) == pytest.approx(optimizer.param_groups[0]["lr"]), step
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(
    ("optimizer", "field"),
    [
        ({"step_decay": {"epochs": [3, 10], "factor": 0.1}}, "train.optimizer.step_decay.epochs"),
        ({"step_decay": {"epochs": [5, 3], "factor": 0.1}}, "train.optimizer.step_decay.epochs"),
        ({"step_decay": {"epochs": [3, 3], "factor": 0.1}}, "train.optimizer.step_decay.epochs"),
        ({"step_decay": {"epochs": 3, "factor": 0.1}, "lr_end": 0.1}, "train.optimizer.lr_end"),
    ],
)
def test_step_decay_without_meaning_is_refused(optimizer: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        train_settings(**optimizer)
    assert [problem.field for problem in raised.value.problems] == [field]


def test_weight_decay_follows_a_half_cosine() -> None:
    decays = [weight_decay(step, 5, train_settings()) for step in range(50)]
    assert decays[0] == pytest.approx(0.04)
    assert decays[25] == pytest.approx(0.22)  # half way
    assert decays[-1] == pytest.approx(0.4, rel=0.01)
    assert all(earlier < later for earlier, later in pairwise(decays))


def test_schedules_are_applied_to_every_group() -> None:
    model = nn.Linear(3, 2)
    train = train_settings()
    optimizer = build_optimizer(train.optimizer, model, {"bias": 100.0})
    lr = set_schedules(optimizer, 25, 5, train)
    by_size = {group["params"][0].ndim: group for group in optimizer.param_groups}
    assert by_size[2]["lr"] == lr
    assert by_size[1]["lr"] == 100 * lr
    assert by_size[2]["weight_decay"] == pytest.approx(0.22)
    assert by_size[1]["weight_decay"] == 0


def test_head_rate_is_that_of_heads_but_not_of_proxies() -> None:
    settings = tiny_spec(
        method={"name": "proxy_anchor", "proxy_lr": 50.0}, train={"optimizer": {"head_lr": 5.0}}
    )
    facts = DatasetFacts(num_images=100, num_classes=3, median_size=32)
    spec = resolve(JobSpec.model_validate(settings), facts)
    factors = learning_rate_factors(spec.train.optimizer, build_method(spec, 3))
    assert factors == {"head.weight": 5.0, "head.bias": 5.0, "criterion.proxies": 50.0}


def test_adam_adds_the_decay_to_the_gradient() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    settings = train_settings(name="adam", lr=0.1, weight_decay=0.5).optimizer
    optimizer = build_optimizer(settings, model, {})
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    # The decay alone is the gradient, whose size Adam's first step normalizes.
    assert model.weight.item() == pytest.approx(1.9, rel=1e-5)
