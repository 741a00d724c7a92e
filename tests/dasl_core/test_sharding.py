"""Sharded training: two ranks that divide all weights compute what two ranks with whole weights do."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import local_shard, whole_tensor
from dasl_core.methods import REGISTRY, Step
from dasl_core.spec import Clip, ResolvedJobSpec
from dasl_core.spec.problems import SpecError
from dasl_core.spec.resolve import estimate
from dasl_core.spec.resolve.checks import SHARDED_METHODS
from dasl_core.train.serialization import load_state
from dasl_core.train.update import Updater
from dasl_core.train.validation import Validator
from dasl_core.vocabulary import Desired
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import (
    TINY_BACKBONES,
    Recorder,
    assert_same,
    families_first,
    open_trainer,
    resolved,
    run,
)

TOLERANCE = 1e-6
WEIGHTS = "backbone.safetensors"
SHARDINGS = ("none", "fsdp")
# What changes how gradients are computed or applied, with the methods to which it applies.
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "alone": (SHARDED_METHODS, {}),
    "micro_batches": (SHARDED_METHODS, {"train": {"micro_batches": 2}}),
    "checkpoint_activations": (("simclr", "dino"), {"train": {"checkpoint_activations": True}}),
    "regularizers": (("simclr",), {"dar": {"weight": 0.1}, "sec": {"weight": 0.5}}),
    "separate_views": (("byol",), {"method": {"separate_views": True}}),
    "sgd": (("simclr", "dino"), {"train": {"optimizer": {"name": "sgd"}}}),
    "bf16": (("dino",), {"train": {"precision": "bf16"}}),
    "head_only_epochs": (("byol",), {}),
}
CASES = [(method, name) for name, (methods, _) in VARIANTS.items() for method in methods]


def sharded_spec(
    index: DatasetIndex, method: str, sharding: str, /, **changes: dict[str, Any]
) -> dict[str, Any]:
    """A spec of two epochs of three steps in float32 on two ranks, as JSON."""
    sections: dict[str, dict[str, Any]] = {
        "method": {"name": method},
        "backbone": TINY_BACKBONES["ibot"],
        "train": {
            "epochs": 2,
            "precision": "fp32",
            "sharding": sharding,
            "checkpoint_every_epochs": 2,
        },
        "resources": {"workers": 2},
    }
    merged = {name: sections.get(name, {}) | changes.get(name, {}) for name in sections | changes}
    spec: dict[str, Any] = resolved(index, **merged).model_dump(mode="json")
    return spec


def gradients_of_steps(
    spec: dict[str, Any], index: DatasetIndex, cache: Path, scratch: Path, steps: int
) -> list[dict[str, np.ndarray]]:
    """Whole gradients of the first steps of a run."""
    this = open_trainer(ResolvedJobSpec.model_validate(spec), index, cache, scratch)
    weights = dict(this.method.named_parameters())
    is_sharded = spec["train"]["sharding"] == "fsdp"
    assert {isinstance(weight, DTensor) for weight in weights.values()} == {is_sharded}
    held = sum(local_shard(weight).numel() for weight in weights.values())
    whole = sum(weight.numel() for weight in weights.values())
    assert held == pytest.approx(whole / 2 if is_sharded else whole, rel=0.01)
    recorded: list[dict[str, np.ndarray]] = []
    before_update = this.method.before_update

    def copied(step: Step) -> None:
        gradients = {name: weight.grad for name, weight in weights.items()}
        recorded.append(
            {name: whole_tensor(g).numpy().copy() for name, g in gradients.items() if g is not None}
        )
        before_update(step)

    this.method.before_update = copied  # type: ignore[method-assign]
    per_epoch = this.run.length.steps_per_epoch
    try:
        for step in range(steps):
            if step % per_epoch == 0:
                this.begin_epoch(step // per_epoch)
                batches = this.loader.epoch(step // per_epoch)
            this.step(next(batches))
    finally:
        this.close()
    return recorded


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_gradients_equal_those_of_ddp(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str, variant: str
) -> None:
    steps = 4 if variant == "head_only_epochs" else 1  # three are of the heads alone
    results: list[list[dict[str, np.ndarray]]] = []
    for sharding in SHARDINGS:
        spec = sharded_spec(pictures, method, sharding, **VARIANTS[variant][1])
        if variant == "head_only_epochs":  # refused for random weights
            spec["train"]["head_only_epochs"] = 1
        results.append(pool.call(2, gradients_of_steps, spec, pictures, cache, tmp_path, steps)[0])
    for expected, actual in zip(*results, strict=True):
        assert actual.keys() == expected.keys()
        # Micro-batches are added in another order, and later steps multiply rounding errors.
        largest = max(1, *(np.abs(gradient).max() for gradient in expected.values()))
        tolerance = TOLERANCE * (largest if variant == "micro_batches" or steps > 1 else 1)
        for name, gradient in expected.items():
            np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=tolerance, err_msg=name)


def clipped(sharding: str) -> list[np.ndarray]:
    """Gradients of odd sizes after each kind of clipping, and their norms."""
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    inputs = torch.randn(2, 4, 3)[dist.get_rank()]
    model: nn.Module = layers
    if sharding == "fsdp":
        fully_shard(layers)
    else:
        model = DistributedDataParallel(layers)
    results: list[np.ndarray] = []
    for clip in (
        Clip(norm=0.1),
        Clip(norm=0.1, each=True),
        Clip(value=0.01),
    ):
        updater = Updater(
            torch.optim.SGD(layers.parameters(), lr=1.0),
            clip,
            [],
            torch.device("cpu"),
            scaled=False,
        )
        before = [whole_tensor(weight.detach()).clone() for weight in layers.parameters()]
        model(inputs).square().mean().backward()
        norm, updated = updater.apply()
        assert updated is True
        results.append(norm.numpy())
        for weight, old in zip(layers.parameters(), before, strict=True):
            results.append((old - whole_tensor(weight.detach())).numpy())
    return results


def test_clipping_uses_the_norms_of_whole_gradients(pool: GlooPool) -> None:
    ddp, fsdp = (pool.call(2, clipped, sharding) for sharding in SHARDINGS)
    for rank in range(2):
        for expected, actual in zip(ddp[rank], fsdp[rank], strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def skipped_and_updated(sharding: str, decided_by: str, name: str) -> list[np.ndarray]:
    """Weights after a step with a NaN on one rank, and after a step without."""
    torch.manual_seed(5)
    layer = nn.Linear(3, 5)
    model: nn.Module = layer
    if sharding == "fsdp":
        fully_shard(layer)
    else:
        model = DistributedDataParallel(layer)
    optimizer: torch.optim.Optimizer
    if name == "adamw":
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    else:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    deferred, scaled = decided_by == "device", decided_by == "scaler"
    updater = Updater(optimizer, None, [], torch.device("cpu"), deferred=deferred, scaled=scaled)
    results: list[np.ndarray] = []
    for factor in (float("nan") if dist.get_rank() == 1 else 1.0, 1.0):
        updater.scaler.scale(model(torch.ones(2, 3)).square().mean() * factor).backward()
        updater.unscale()
        _, updated = updater.apply()
        results += [whole_tensor(weight.detach()).numpy().copy() for weight in layer.parameters()]
        results.append(np.array(bool(updated)))
    return results


@pytest.mark.parametrize("decided_by", ["host", "device", "scaler"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_step_that_is_not_finite_on_one_rank_is_skipped_on_all(
    pool: GlooPool, name: str, decided_by: str
) -> None:
    ddp, fsdp = (pool.call(2, skipped_and_updated, each, decided_by, name) for each in SHARDINGS)
    assert [bool(result) for result in (ddp[0][2], ddp[0][5])] == [False, True]
    for rank in range(2):
        for expected, actual in zip(ddp[rank], fsdp[rank], strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-6)


# --- whole runs


def whole_run(
    spec: dict[str, Any],
    index: DatasetIndex,
    cache: Path,
    kept: Path,
    stop: int | None = None,
    resume: Path | None = None,
) -> tuple[list[float], list[Any]]:
    """The losses and evaluations of a run, which is cancelled after `stop` steps, on rank 0."""

    def desired(started: int) -> Desired:
        return "cancel" if started == stop else "run"

    reporter = Recorder(kept, desired) if dist.get_rank() == 0 else None
    torch.rand(7 * (1 + dist.get_rank()))  # stands for other draws
    with patch.object(Validator, "publish_plots", lambda *_: None):
        outcome = run(ResolvedJobSpec.model_validate(spec), index, cache, reporter, resume)
    assert outcome == ("succeeded" if stop is None else "cancelled")
    return ([], []) if reporter is None else (reporter.curve(), reporter.evaluations)


@pytest.mark.parametrize("method", families_first(SHARDED_METHODS, ("simclr",)))
def test_run_equals_that_of_ddp_and_resumes_bit_for_bit(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str
) -> None:
    epochs = 1 if method == "simclr" else 2
    # Stochastic depth draws from the stream of each rank.
    changes: dict[str, Any] = {"backbone": {"drop_path": 0.2}, "train": {"epochs": epochs}}
    for sharding in SHARDINGS:
        spec = sharded_spec(pictures, method, sharding, **changes)
        folder = tmp_path / sharding
        losses, evaluations = pool.call(2, whole_run, spec, pictures, cache, folder)[0]
        if sharding == "none":
            expected, theirs = losses, evaluations
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for (*at, ours), (*there, metrics) in zip(evaluations, theirs, strict=True):
        assert at == there
        assert ours == pytest.approx(metrics, abs=1e-2), at

    end = 3 * epochs
    stopped, rest, last = tmp_path / "stopped", tmp_path / "rest", f"step-{end}"
    first, _ = pool.call(2, whole_run, spec, pictures, cache, stopped, end - 1)[0]
    checkpoint = stopped / f"step-{end - 1}"
    second, _ = pool.call(2, whole_run, spec, pictures, cache, rest, None, checkpoint)[0]
    assert first + second == losses
    assert_same(load_state(tmp_path / "fsdp" / last), load_state(rest / last), "state")

    exported = {name: load_file(tmp_path / name / last / WEIGHTS) for name in SHARDINGS}
    model = timm.create_model("test_vit", num_classes=0, img_size=32)
    model.load_state_dict(exported["fsdp"])
    for name, weight in exported["none"].items():
        torch.testing.assert_close(exported["fsdp"][name], weight, rtol=0, atol=1e-5, msg=name)


@pytest.mark.slow
def test_checkpoint_resumes_without_shards(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = sharded_spec(pictures, "dino", "fsdp")
    losses, _ = pool.call(2, whole_run, spec, pictures, cache, tmp_path / "whole")[0]
    pool.call(2, whole_run, spec, pictures, cache, tmp_path / "stopped", 3)
    # On one rank, nothing is sharded.
    spec["resources"]["workers"] = 1
    resumed = Recorder(tmp_path / "one")
    checkpoint = tmp_path / "stopped" / "step-3"
    assert (
        run(ResolvedJobSpec.model_validate(spec), pictures, cache, resumed, checkpoint)
        == "succeeded"
    )
    np.testing.assert_allclose(resumed.curve(), losses[3:], rtol=1e-4)


# --- refused settings


@pytest.mark.parametrize("method", sorted(REGISTRY.keys() - {*SHARDED_METHODS}))
def test_other_methods_are_refused(pictures: DatasetIndex, method: str) -> None:
    with pytest.raises(SpecError, match=f"train.sharding: .*method.name: {method}"):
        sharded_spec(pictures, method, "fsdp")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backbone": {"name": "resnet18"}}, "backbone.name: resnet18"),
        ({"train": {"optimizer": {"name": "lars"}}}, "train.optimizer.name: lars"),
        ({"train": {"compile": True}}, "train.compile: true"),
        ({"train": {"channels_last": True}}, "train.channels_last: true"),
    ],
)
def test_settings_that_cannot_be_sharded_are_refused(
    pictures: DatasetIndex, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError, match=f"train.sharding: .*{reason}"):
        sharded_spec(pictures, "simclr", "fsdp", **changes)


def test_estimate_divides_the_state_among_ranks(pictures: DatasetIndex) -> None:
    whole, sharded = (
        estimate(
            ResolvedJobSpec.model_validate(sharded_spec(pictures, "dino", sharding)),
            pictures.facts(),
        )
        for sharding in SHARDINGS
    )
    assert sharded.state_bytes_per_worker == whole.state_bytes_per_worker / 2
    assert sharded.checkpoint_bytes == whole.checkpoint_bytes
