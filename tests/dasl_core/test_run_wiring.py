"""Wiring of a run: settings reach their components, and probing the network has no side effects."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import REGISTRY
from dasl_core.spec import Clip, ResolvedJobSpec
from dasl_core.spec.methods.proxy_anchor import ProxyAnchor
from tests.support.training_world import (
    SMALL,
    Recorder,
    families_first,
    open_trainer,
    resolved,
)

FirstStep = Callable[[ResolvedJobSpec], dict[str, Tensor]]
RATE = 0.25
# A step changes each weight by exactly the rate times its gradient.
PLAIN: dict[str, Any] = {
    "precision": "fp64",
    "warmup_epochs": 0,
    "optimizer": {"name": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0},
}


@pytest.fixture
def first_step(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> FirstStep:
    """A function from a spec to the change of each trained weight in the first step of a run."""

    def moved(spec: ResolvedJobSpec) -> dict[str, Tensor]:
        with closing(open_trainer(spec, pictures, cache, tmp_path)) as this:
            trained = {id(weight) for weight in this.updater.weights}
            weights = {
                name: weight
                for name, weight in this.method.named_parameters()
                if id(weight) in trained
            }
            before = {name: weight.detach().clone() for name, weight in weights.items()}
            this.step(next(this.loader.epoch(0)))
            return {name: weight.detach() - before[name] for name, weight in weights.items()}

    return moved


def assert_scaled(
    moved: dict[str, Tensor], plain: dict[str, Tensor], factors: dict[str, float]
) -> None:
    """Check that each weight moved `factors` times as far as in the plain run, in the same direction."""
    assert moved.keys() == plain.keys() == factors.keys()
    for name, change in plain.items():
        torch.testing.assert_close(
            moved[name], change * factors[name], rtol=1e-5, atol=1e-12, msg=name
        )


def lengths(moved: dict[str, Tensor]) -> dict[str, float]:
    return {name: change.norm().item() for name, change in moved.items()}


# --- clipping


def test_dino_clips_each_gradient_to_three(pictures: DatasetIndex, first_step: FirstStep) -> None:
    """As in the paper's code. The low temperature makes gradients large enough."""
    method = {"name": "dino", **SMALL["dino"], "student_temperature": 2e-3}
    usual = resolved(pictures, method=method, train=PLAIN)
    assert usual.train.clip == Clip(norm=3.0, each=True)
    plain = first_step(resolved(pictures, method=method, train=PLAIN | {"clip": None}))
    factors = {
        name: min(1.0, 3.0 * RATE / length) if length else 1.0
        for name, length in lengths(plain).items()
    }
    long = [name for name, factor in factors.items() if factor < 0.99]
    assert 1 < len(long) < len(factors)  # some are clipped, some are not
    clipped = first_step(usual)
    assert_scaled(clipped, plain, factors)
    assert max(lengths(clipped).values()) == pytest.approx(3.0 * RATE, rel=1e-5)


# --- learning rates


def test_proxies_have_hundredfold_learning_rate(
    pictures: DatasetIndex, first_step: FirstStep
) -> None:
    assert ProxyAnchor().proxy_lr == 100.0
    plain, usual = (
        first_step(resolved(pictures, method={"name": "proxy_anchor", **rate}, train=PLAIN))
        for rate in ({"proxy_lr": 1.0}, {"proxy_lr": 100.0})
    )
    assert plain["criterion.proxies"].norm() > 0
    assert_scaled(usual, plain, dict.fromkeys(plain, 1.0) | {"criterion.proxies": 100.0})


def test_layer_decay_slows_earlier_blocks(pictures: DatasetIndex, first_step: FirstStep) -> None:
    """Each block has half the rate of the next one; the patch embedding counts as the first."""

    def spec(decay: float) -> ResolvedJobSpec:
        optimizer = PLAIN["optimizer"] | {"layer_decay": decay}
        return resolved(
            pictures,
            backbone={"name": "test_vit", "image_size": 32},
            train=PLAIN | {"optimizer": optimizer},
        )

    plain, decayed = first_step(spec(1.0)), first_step(spec(0.5))
    depth = 1 + max(int(name.split(".")[2]) for name in plain if ".blocks." in name)
    factors = dict.fromkeys(plain, 1.0)  # of what comes after the blocks
    for name in plain:
        if ".blocks." in name:
            factors[name] = 0.5 ** (depth - 1 - int(name.split(".")[2]))
        elif name.startswith(("backbone.patch_embed", "backbone.cls_token", "backbone.pos_embed")):
            factors[name] = 0.5**depth
    assert depth == 6
    assert sorted(set(factors.values())) == [0.5**power for power in range(6, -1, -1)]
    assert plain["backbone.patch_embed.proj.weight"].norm() > 0
    assert_scaled(decayed, plain, factors)


# --- views


def test_per_view_setting_changes_only_that_view(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """Both views show the same whole image, but the second is inverted above one half."""
    augment = {"crop_scale": (1, 1), "flip": 0, "jitter": 0, "grayscale": 0, "blur": 0}
    spec = resolved(
        pictures,
        method={"name": "byol"},
        augment=augment | {"solarize": (0, 1)},
        train={"precision": "fp64"},
    )
    with closing(open_trainer(spec, pictures, cache, tmp_path)) as this:
        views = this.prefetcher.maker.make(next(this.loader.epoch(0)), 0)
    mean, std = (
        torch.tensor(values).double().view(3, 1, 1)
        for values in (spec.backbone.mean, spec.backbone.std)
    )
    first, second = (view * std + mean for view in views)
    assert ((first > 0.5).flatten(1).any(dim=1) & (first < 0.5).flatten(1).any(dim=1)).any()
    expected = torch.where(first > 0.5, 1 - first, first)
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-6)


# --- the probe


def test_probe_leaves_network_in_training_mode(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """At every fifth step, some images are embedded in eval mode; an epoch has 12."""
    spec = resolved(pictures, train={"epochs": 4, "batch_size": 2})
    reporter, training, looks = Recorder(tmp_path / "kept"), [], []

    def note(method: nn.Module, *_: Any) -> None:
        looks.append(method.training)

    with closing(open_trainer(spec, pictures, cache, tmp_path, reporter)) as this:
        this.method.backbone.register_forward_hook(note)
        for batch in this.loader.epoch(0):
            training.append(all(part.training for part in this.method.modules()))
            this.step(batch)
        training.append(this.method.training)
        steps = [
            int(value)
            for name, value in this.method.named_buffers()
            if name.endswith("num_batches_tracked")
        ]
    assert len(reporter.curve()) == 12
    assert training == [True] * 13
    # Before and after the update.
    assert looks == ([True] * 5 + [False] * 2) * 2 + [True] * 2
    assert len(reporter.curve("angular_update")) == 2
    assert steps
    assert set(steps) == {12}


@pytest.mark.parametrize("method", families_first(sorted(REGISTRY), ("dino", "ibot")))
def test_embeddings_of_the_step_are_those_of_a_probe(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Not those of masked images, nor of a network that training changes."""
    train = {"epochs": 1, "batch_size": 12, "precision": "fp64"}
    spec = resolved(pictures, method={"name": method}, backbone={"name": "test_vit"}, train=train)
    turns = []
    for name in ("of the step", "probed"):
        (tmp_path / name).mkdir()
        reporter = Recorder(tmp_path / name / "kept")
        with closing(open_trainer(spec, pictures, cache, tmp_path / name, reporter)) as this:
            for batch in this.loader.epoch(0):
                this.step(batch)
        turns.append(reporter.curve("angular_update"))
        monkeypatch.setattr("dasl_core.train.trainer.depends_on_mode", lambda _: True)
    assert len(turns[0]) == 1
    assert turns[0] == pytest.approx(turns[1], rel=1e-6)


# --- precision


@pytest.mark.parametrize(
    ("precision", "method", "parts"),
    [
        ("fp64", "simclr", 1),
        ("bf16", "simclr", 2),  # gradient caching
        ("bf16", "byol", 2),  # gradient accumulation
        *(
            pytest.param(precision, "simclr", 1, marks=pytest.mark.slow)
            for precision in ("fp32", "bf16", "fp16")
        ),
    ],
)
def test_network_runs_in_requested_precision(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, precision: str, method: str, parts: int
) -> None:
    """In training, probe and evaluation; weights and losses keep their own precision."""
    wanted = {
        "fp32": torch.float32,
        "fp64": torch.float64,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }[precision]
    own = torch.float64 if precision == "fp64" else torch.float32
    spec = resolved(
        pictures,
        method={"name": method, **SMALL[method]},
        # float16 takes a CPU long; for bfloat16 see test_resume
        backbone={"stem": "standard" if precision == "fp16" else "small"},
        train={"precision": precision, "micro_batches": parts, "batch_size": 24, "epochs": 1},
        evaluate={"knn": None, "retrieval": []},
    )
    seen: list[torch.dtype] = []

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        seen.append(output.dtype)

    reporter = Recorder(tmp_path / "kept")
    with closing(open_trainer(spec, pictures, cache, tmp_path, reporter)) as this:
        layers = [
            module for module in this.method.modules() if isinstance(module, nn.Conv2d | nn.Linear)
        ]
        for layer in layers:
            layer.register_forward_hook(note)
        this.step(next(this.loader.epoch(0)))
        # The parts' forwards (twice where gradients are cached), and two looks at embeddings.
        passes = {("simclr", 2): 4}.get((method, parts), parts)
        looked_at = {*this.method.backbone.modules(), *this.method.embedding_head.modules()}
        assert len(seen) >= passes * len(layers) + 2 * len(looked_at.intersection(layers))
        assert set(seen) == {wanted}
        seen.clear()
        this.validator.evaluate("backbone")
        assert seen
        assert set(seen) == {wanted}
        assert {weight.dtype for weight in this.method.parameters()} == {own}
    assert len(reporter.curve("angular_update")) == 1
