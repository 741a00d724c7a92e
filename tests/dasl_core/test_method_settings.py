"""Settings of all methods: each one has an effect, and exactly the intended one.

Covers the whole registry: a new method or setting fails here until its effect is listed in
`SETTING_EFFECTS` of the method's test.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import REGISTRY, Step, build_method
from dasl_core.seeds import stream
from dasl_core.spec import METHODS, ResolvedJobSpec
from dasl_core.spec.methods import RESOLVED_METHODS
from dasl_core.spec.methods.config import MetricLearningConfig
from dasl_core.train.optim import learning_rate_factors
from dasl_core.train.views import build_views
from tests.support.setting_effects import EPOCHS, PER_EPOCH, SAMPLES, History, SettingEffects
from tests.support.training_world import resolved

Bases = Callable[..., tuple[ResolvedJobSpec, dict[str, Any]]]
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])


@cache
def effects_of(name: str) -> SettingEffects:
    """Return what the test module of a method says of its settings."""
    supervised = issubclass(METHODS[name], MetricLearningConfig)
    module = f"tests.dasl_core.test_{'metric_learning' if supervised else name}"
    effects: dict[str, SettingEffects] = getattr(import_module(module), "SETTING_EFFECTS", {})
    if name not in effects:
        pytest.fail(f'add SETTING_EFFECTS["{name}"] to {module}; see {SettingEffects.__module__}')
    return effects[name]


def test_settings_are_listed_for_existing_methods_only() -> None:
    listed: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if "\nSETTING_EFFECTS = " in path.read_text():
            listed |= import_module(f"tests.dasl_core.{path.stem}").SETTING_EFFECTS.keys()
    assert listed == METHODS.keys()


CASES = [(name, field) for name in METHODS for field in METHODS[name].model_fields]
CASES = [(name, field) for name, field in CASES if field != "name"]


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
        "views": build_views(spec.method, spec.augment, spec.backbone.image_size),
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
    masks = method.draw_masks(range(SAMPLES))
    with torch.no_grad():
        seen["outputs"] = method(images) if masks is None else method(images, masks)
    history: History = []
    for step in steps:
        given = {
            output: 2 * torch.rand(value.shape, generator=stream(0, output, step.index)) - 1
            for output, value in seen["outputs"].items()
        }
        loss = method.loss(given, step)
        history.append((step, given))
        expected = effects_of(name).loss(settings, method, history)
        assert torch.equal(loss, expected), (name, step.index)
        seen["loss"].append(loss.detach())
        for weight in method.parameters():
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        method.before_update(step)
        seen["frozen"].append({n for n, w in method.named_parameters() if w.grad is None})
        method.after_update(step)
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
def bases(pictures: DatasetIndex) -> Bases:
    """The base spec and its observed behavior, by method and backbone."""
    known: dict[tuple[str, str | None], tuple[ResolvedJobSpec, dict[str, Any]]] = {}

    def base(name: str, backbone: str | None = None) -> tuple[ResolvedJobSpec, dict[str, Any]]:
        if (name, backbone) not in known:
            spec = spec_of(pictures, name, backbone, {})
            known[name, backbone] = spec, observe(spec)
        return known[name, backbone]

    return base


def spec_of(
    index: DatasetIndex, name: str, backbone: str | None, changes: dict[str, Any]
) -> ResolvedJobSpec:
    method = {"name": name} | dict(effects_of(name).base) | changes
    return resolved(index, method=method, backbone={} if backbone is None else {"name": backbone})


@pytest.mark.parametrize(("name", "field"), CASES)
def test_setting_has_exactly_the_stated_effects(
    pictures: DatasetIndex, bases: Bases, name: str, field: str
) -> None:
    change = effects_of(name).others.get(field)
    if change is None:
        pytest.fail(
            f'add to SETTING_EFFECTS["{name}"] a line for "{field}": another value than the default, '
            "and what of `observe` it changes"
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


@pytest.mark.parametrize("name", METHODS)
def test_no_resolved_setting_can_be_auto(name: str) -> None:
    """A field narrowed by a base class alone keeps the type of the other base."""
    for field, info in RESOLVED_METHODS[name].model_fields.items():
        assert info.default != "auto", field
        assert "'auto'" not in repr(info.annotation), field


@pytest.mark.parametrize("name", REGISTRY)
def test_only_existing_settings_are_listed(name: str) -> None:
    assert effects_of(name).others.keys() == METHODS[name].model_fields.keys() - {"name"}


@pytest.mark.parametrize("name", REGISTRY)
def test_embedding_width_is_that_of_the_setting(bases: Bases, name: str) -> None:
    spec, seen = bases(name)
    widths = {"projection_dim", "bottleneck_dim", "embedding_dim"} & effects_of(name).others.keys()
    assert len(widths) == 1
    width = getattr(spec.method, widths.pop())
    assert seen["outputs"]["embeddings"].shape[-1] == width == 8


@pytest.mark.parametrize("name", REGISTRY)
def test_embed_computes_the_embeddings_of_forward(pictures: DatasetIndex, name: str) -> None:
    spec = resolved(pictures, method={"name": name})
    torch.manual_seed(0)
    method = build_method(spec, num_classes=3).double().eval()
    images = [
        torch.randn(SAMPLES, 3, view.image_size, view.image_size, dtype=torch.float64)
        for view in build_views(spec.method, spec.augment, spec.backbone.image_size)
    ]
    with torch.no_grad():
        for view, embeddings in zip(images, method(images)["embeddings"], strict=False):
            assert (embeddings.norm(dim=-1) - 1).abs().max() > 1e-3, "regularizers see them raw"
            torch.testing.assert_close(method.embed(view), embeddings)
            alone = torch.cat([method.embed(image.unsqueeze(0)) for image in view])
            torch.testing.assert_close(alone, embeddings)


@pytest.mark.parametrize("name", REGISTRY)
def test_losses_of_directions_do_not_depend_on_embedding_lengths(
    pictures: DatasetIndex, name: str
) -> None:
    spec = resolved(pictures, method={"name": name})
    torch.manual_seed(0)
    method = build_method(spec, num_classes=3).double()
    images = [
        torch.randn(SAMPLES, 3, view.image_size, view.image_size, dtype=torch.float64)
        for view in build_views(spec.method, spec.augment, spec.backbone.image_size)
    ]
    step = Step(0, PER_EPOCH * EPOCHS, PER_EPOCH, torch.arange(SAMPLES), LABELS)
    outputs = method(images)
    embeddings = outputs["embeddings"].detach().flatten(0, 1)
    lengths = torch.linspace(0.5, 3, len(images) * SAMPLES, dtype=torch.float64).unsqueeze(1)

    def rescale(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or output.shape[1:] != embeddings.shape[1:]:
            return None
        if len(output) < len(embeddings):
            return None
        is_embeddings = torch.allclose(output[: len(embeddings)], embeddings)
        return output * lengths[: len(output)] if is_embeddings else None

    for module in method.modules():
        module.register_forward_hook(rescale)
    rescaled = method(images)
    assert not torch.allclose(rescaled["embeddings"], outputs["embeddings"])
    same_loss = torch.isclose(method.loss(outputs, step), method.loss(rescaled, step), rtol=1e-9)
    assert bool(same_loss) == METHODS[name].compares_directions
