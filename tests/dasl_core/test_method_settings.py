"""Settings of all methods: each one has an effect, and exactly the intended one.

Covers the whole registry: a new method or setting fails here until its effect is listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import REGISTRY, Method, Outputs, Step, build_method, nt_xent
from dasl_core.methods.barlow_twins import barlow_twins_loss
from dasl_core.methods.byol import byol_loss
from dasl_core.methods.dino import TemperatureWarmup, dino_loss
from dasl_core.methods.hcl import hard_negative_loss
from dasl_core.methods.moco_v3 import moco_v3_loss
from dasl_core.methods.multi_similarity import MultiSimilarity
from dasl_core.methods.npair import NPair
from dasl_core.methods.proxy_anchor import ProxyAnchor
from dasl_core.methods.swav import SwAV, sinkhorn, swapped_prediction
from dasl_core.methods.triplet import Triplet
from dasl_core.methods.vicreg import vicreg_loss
from dasl_core.seeds import stream
from dasl_core.spec import METHODS, ResolvedJobSpec
from dasl_core.train.optim import learning_rate_factors
from dasl_core.train.views import views_of
from tests.support.training_world import resolved

SAMPLES, PER_EPOCH, EPOCHS = 8, 2, 3  # a queue of 16 is full after the first epoch
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])


class Other(NamedTuple):
    """An alternative value of a setting, and its effects.

    Attributes:
        effects: names in the result of `observe` that change: exactly these, unless the network
            changes, in which case all may change.
        backbone: set if the setting applies to one family only.
    """

    value: Any
    effects: frozenset[str]
    backbone: str = "test_resnet"


def other(value: Any, *effects: str, backbone: str = "test_resnet") -> Other:
    return Other(value, frozenset(effects), backbone)


# Base values of the comparison besides `training_world.SMALL`, for settings whose default would leave
# another one without effect.
BASE: dict[str, dict[str, Any]] = {"dino": {"teacher_temperature": 0.07}}

HEAD = {"projection_dim": other(11, "network"), "hidden_dim": other(13, "network")}
LOCAL = {
    "local_crops": other(3, "views", "outputs", "loss"),
    "local_size": other(12, "views", "outputs"),
    "local_scale": other((0.1, 0.3), "views"),
}
EMBEDDING = {"embedding_dim": other(11, "network")}
OTHERS: dict[str, dict[str, Other]] = {
    "simclr": HEAD | {"temperature": other(0.7, "loss")},
    "hcl": HEAD
    | {
        "temperature": other(0.7, "loss"),
        "tau_plus": other(0.3, "loss"),
        "beta": other(0.25, "loss"),
    },
    "byol": HEAD | {"teacher_momentum": other(0.5, "teacher"), "keep": other("teacher", "kept")},
    "moco_v3": HEAD
    | {
        "temperature": other(0.7, "loss"),
        "freeze_patch_projection": other(False, "frozen", "rates", backbone="test_vit"),
        "teacher_momentum": other(0.5, "teacher"),
        "keep": other("teacher", "kept"),
    },
    "vicreg": HEAD
    | {
        "invariance": other(3.0, "loss"),
        "variance": other(5.0, "loss"),
        "covariance": other(7.0, "loss"),
    },
    "barlow_twins": HEAD | {"redundancy": other(0.5, "loss"), "loss_scale": other(2.0, "loss")},
    "dino": LOCAL
    | {
        "bottleneck_dim": other(11, "network"),
        "hidden_dim": other(13, "network"),
        "head_batch_norm": other(True, "network"),
        "out_dim": other(20, "network"),
        "student_temperature": other(0.7, "loss"),
        "teacher_temperature": other(0.3, "loss"),
        "teacher_temperature_start": other(0.3, "loss"),
        "teacher_temperature_epochs": other(3, "loss"),
        "center_momentum": other(0.5, "loss"),
        "teacher_momentum": other(0.5, "teacher"),
        "freeze_last_layer_epochs": other(2, "frozen"),
        "keep": other("student", "kept"),
    },
    "swav": HEAD
    | LOCAL
    | {
        "temperature": other(0.7, "loss"),
        "prototypes": other(10, "network"),
        "epsilon": other(0.3, "loss"),
        "sinkhorn_iterations": other(1, "loss"),
        "queue_length": other(16, "network", "loss"),
        "queue_start_epoch": other(2, "loss"),
        "freeze_prototypes_epochs": other(2, "frozen"),
    },
    "npair": EMBEDDING | {"normalize": other(False, "loss"), "scale": other(3.0, "loss")},
    "proxy_anchor": EMBEDDING
    | {
        "margin": other(0.4, "loss"),
        "alpha": other(9.0, "loss"),
        "proxy_lr": other(7.0, "rates"),
    },
    "triplet": EMBEDDING | {"mining": other("all", "loss"), "margin": other(0.7, "loss")},
    "multi_similarity": EMBEDDING
    | {
        "alpha": other(5.0, "loss"),
        "beta": other(9.0, "loss"),
        "base": other(-0.1, "loss"),
        "epsilon": other(0.05, "loss"),
    },
}
CASES = [(name, field) for name in METHODS for field in METHODS[name].model_fields]
CASES = [(name, field) for name, field in CASES if field != "name"]


# --- each method's loss by its settings

History = list[tuple[Step, Outputs]]
"""The steps of a run so far, with the arguments of `loss`."""


def dino_of(settings: Any, method: Method, history: History) -> Tensor:
    temperature = TemperatureWarmup(
        settings.teacher_temperature_start,
        settings.teacher_temperature,
        settings.teacher_temperature_epochs,
    )
    center = torch.zeros(settings.out_dim)
    for _, outputs in history[:-1]:
        center = center.lerp(outputs["teacher"].mean(dim=(0, 1)), 1 - settings.center_momentum)
    step, outputs = history[-1]
    targets = F.softmax((outputs["teacher"] - center) / temperature(step.epoch), dim=-1)
    return dino_loss(targets, outputs["student"], settings.student_temperature)


def swav_of(settings: Any, method: Method, history: History) -> Tensor:
    assert isinstance(method, SwAV)
    step, outputs = history[-1]
    candidates = outputs["scores"][:2]
    earlier = [F.normalize(outputs["embeddings"], dim=-1) for _, outputs in reversed(history[:-1])]
    images = SAMPLES * len(earlier)
    if step.epoch >= settings.queue_start_epoch and images >= settings.queue_length > 0:
        queue = torch.cat(earlier, dim=1)[:, : settings.queue_length]
        candidates = torch.cat([candidates, method.prototypes(queue)], dim=1)
    codes = sinkhorn(candidates, settings.epsilon, settings.sinkhorn_iterations)
    return swapped_prediction(outputs["scores"], codes[:, :SAMPLES], settings.temperature)


def npair_of(settings: Any, method: Method, history: History) -> Tensor:
    npair = NPair(*network(settings), scale=settings.scale, normalize=settings.normalize)
    return npair.loss(history[-1][1], history[-1][0])


def proxy_anchor_of(settings: Any, method: Method, history: History) -> Tensor:
    anchors = ProxyAnchor(*network(settings), 3, margin=settings.margin, alpha=settings.alpha)
    anchors.criterion.load_state_dict(method.get_submodule("criterion").state_dict())
    return anchors.loss(history[-1][1], history[-1][0])


def triplet_of(settings: Any, method: Method, history: History) -> Tensor:
    triplet = Triplet(*network(settings), mining=settings.mining, margin=settings.margin)
    return triplet.loss(history[-1][1], history[-1][0])


def multi_similarity_of(settings: Any, method: Method, history: History) -> Tensor:
    names = ("alpha", "beta", "base", "epsilon")
    weighted = MultiSimilarity(
        *network(settings), **{name: getattr(settings, name) for name in names}
    )
    return weighted.loss(history[-1][1], history[-1][0])


def network(settings: Any) -> tuple[nn.Module, nn.Linear]:
    """A minimal backbone and head: losses depend only on the head's width."""
    return nn.Identity(), nn.Linear(1, settings.embedding_dim)


LOSSES: dict[str, Callable[[Any, Method, History], Tensor]] = {
    "simclr": lambda s, _, h: nt_xent(h[-1][1]["embeddings"], s.temperature),
    "hcl": lambda s, _, h: hard_negative_loss(
        h[-1][1]["embeddings"], s.temperature, s.tau_plus, s.beta
    ),
    "byol": lambda s, _, h: byol_loss(h[-1][1]["embeddings"], h[-1][1]["targets"]),
    "moco_v3": lambda s, _, h: moco_v3_loss(
        h[-1][1]["embeddings"], h[-1][1]["keys"], s.temperature
    ),
    "vicreg": lambda s, _, h: vicreg_loss(
        h[-1][1]["embeddings"], s.invariance, s.variance, s.covariance
    ),
    "barlow_twins": lambda s, _, h: (
        s.loss_scale * barlow_twins_loss(h[-1][1]["embeddings"], s.redundancy)
    ),
    "dino": dino_of,
    "swav": swav_of,
    "npair": npair_of,
    "proxy_anchor": proxy_anchor_of,
    "triplet": triplet_of,
    "multi_similarity": multi_similarity_of,
}


# --- a method as observed in a run


def observe(spec: ResolvedJobSpec) -> dict[str, Any]:
    """Collect all observable behavior of the method of `spec`, by name, from the same random numbers.

    ``outputs`` are those of the network. ``loss`` is that of given random outputs, step by step: it
    depends on the network only through prototypes or proxies, and is checked here.
    """
    name, settings = spec.method.name, spec.method
    torch.manual_seed(0)
    method = build_method(spec, num_classes=3)
    method.train()
    factors = learning_rate_factors(spec.train.optimizer, method)
    seen: dict[str, Any] = {
        "network": {key: value.clone() for key, value in method.state_dict().items()},
        "views": views_of(spec.method, spec.augment, spec.backbone.image_size),
        "rates": {
            key: factors.get(key, 1.0)
            for key, weight in method.named_parameters()
            if weight.requires_grad
        },
        "kept": ["student" if method.representation is method.backbone else "teacher"],
        "loss": [],
        "frozen": [],
        "teacher": [],
    }
    images = [
        torch.randn(
            SAMPLES, 3, view.image_size, view.image_size, generator=stream(0, "view", number)
        )
        for number, view in enumerate(seen["views"])
    ]
    steps = [
        Step(index, PER_EPOCH * EPOCHS, PER_EPOCH, torch.arange(SAMPLES), LABELS)
        for index in range(PER_EPOCH * EPOCHS)
    ]
    with torch.no_grad():
        seen["outputs"] = method(images)
    history: History = []
    for step in steps:
        given = {
            output: 2 * torch.rand(value.shape, generator=stream(0, output, step.index)) - 1
            for output, value in seen["outputs"].items()
        }
        loss = method.loss(given, step)
        history.append((step, given))
        if name not in LOSSES:
            pytest.fail(f"add {name} to LOSSES: what its loss is, by its settings")
        assert torch.equal(loss, LOSSES[name](settings, method, history)), (name, step.index)
        seen["loss"].append(loss.detach())
        for weight in method.parameters():
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        method.before_update(step)
        seen["frozen"].append({n for n, w in method.named_parameters() if w.grad is None})
    with torch.no_grad():
        for weight in method.parameters():
            if weight.requires_grad:
                weight.add_(1)
    for step in steps:
        method.after_update(step)
        seen["teacher"] += [w.clone() for t in method.teachers() for w in t.parameters()][:1]
    return seen


def same(one: Any, another: Any) -> bool:
    """Whether nested values are equal, tensors bit for bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, another)
    if isinstance(one, dict):
        return one.keys() == another.keys() and all(same(v, another[k]) for k, v in one.items())
    if isinstance(one, list):
        return len(one) == len(another) and all(map(same, one, another))
    return bool(one == another)


@pytest.fixture(scope="module")
def bases(pictures: DatasetIndex) -> Callable[[str, str], tuple[ResolvedJobSpec, dict[str, Any]]]:
    """The base spec and its observed behavior, by method and backbone."""
    known: dict[tuple[str, str], tuple[ResolvedJobSpec, dict[str, Any]]] = {}

    def base(name: str, backbone: str) -> tuple[ResolvedJobSpec, dict[str, Any]]:
        if (name, backbone) not in known:
            spec = spec_of(pictures, name, backbone, {})
            known[name, backbone] = spec, observe(spec)
        return known[name, backbone]

    return base


def spec_of(
    index: DatasetIndex, name: str, backbone: str, changes: dict[str, Any]
) -> ResolvedJobSpec:
    method = {"name": name} | BASE.get(name, {}) | changes
    return resolved(index, method=method, backbone={"name": backbone})


@pytest.mark.parametrize(("name", "field"), CASES)
def test_every_setting_of_a_method_changes_what_it_says_and_nothing_else(
    pictures: DatasetIndex,
    bases: Callable[[str, str], tuple[ResolvedJobSpec, dict[str, Any]]],
    name: str,
    field: str,
) -> None:
    change = OTHERS.get(name, {}).get(field)
    if change is None:
        pytest.fail(
            f'add to OTHERS["{name}"] a line for "{field}": another value than the default, and what '
            "of `observe` it changes"
        )
    assert change.effects, "a setting without an effect is none"
    base, before = bases(name, change.backbone)
    spec = spec_of(pictures, name, change.backbone, {field: change.value})
    assert getattr(spec.method, field) == change.value
    assert getattr(base.method, field) != change.value, "it is to be another value"
    after = observe(spec)
    changed = {part for part in before if not same(before[part], after[part])}
    if "network" in change.effects:
        assert change.effects <= changed
    else:
        assert changed == change.effects


def test_no_setting_is_listed_that_no_method_has() -> None:
    assert OTHERS.keys() == LOSSES.keys() == REGISTRY.keys()
    assert {(name, field) for name, fields in OTHERS.items() for field in fields} == set(CASES)


@pytest.mark.parametrize("name", REGISTRY)
def test_embeddings_are_as_wide_as_the_setting_says(
    bases: Callable[[str, str], tuple[ResolvedJobSpec, dict[str, Any]]], name: str
) -> None:
    spec, seen = bases(name, "test_resnet")
    widths = {"projection_dim", "bottleneck_dim", "embedding_dim"} & OTHERS[name].keys()
    assert len(widths) == 1
    width = getattr(spec.method, widths.pop())
    assert seen["outputs"]["embeddings"].shape[-1] == width == 8
