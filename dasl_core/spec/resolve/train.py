"""Resolve the optimizer, its schedule and the precision."""

from typing import Literal

from dasl_core.spec.fields import LARGEST_RATE
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import Problems
from dasl_core.spec.resolve.epochs import automatic_interval, resolved_epochs
from dasl_core.spec.resolved import ResolvedOptimizer, ResolvedTrain
from dasl_core.spec.train import Clip

# Peak learning rate at a global batch of 256, scaled linearly with the batch (Goyal et al. 2017).
# sgd: lightly's CIFAR SimCLR (0.06 at 128). lars: SimCLR's 0.3. adamw: MoCo v3's ViT 1.5e-4 is for
# 300 epochs at 4096; 5e-4 is usual for ViTs at 256 (DINO, DeiT). adam: the same rate, and the decay of
# Proxy-Anchor's code, as a decay that passes through Adam's scaling must be small.
BASE_LR = {"sgd": 0.12, "lars": 0.3, "adamw": 5e-4, "adam": 5e-4}
WEIGHT_DECAY = {"sgd": 5e-4, "lars": 1e-6, "adamw": 0.05, "adam": 1e-4}


def resolve_train(
    spec: JobSpec,
    batch_size: int,
    samples_per_class: int | None,
    image_cache: Literal["exact", "jpeg"],
) -> ResolvedTrain:
    """Resolve the training settings for the chosen batch."""
    train, recipe, epochs = spec.train, spec.method.recipe, resolved_epochs(spec)
    head_only = train.head_only_epochs
    assert head_only != "auto", "every recipe has a number"
    return train.without_auto(
        ResolvedTrain,
        {
            "precision": precision_with(spec.resources.gpus_per_worker == 1),
            # Also faster on CPUs: forward and backward of ResNets take 8 to 28% less time.
            "channels_last": spec.backbone.info.family == "resnet",
            "clip": None if recipe.clip is None else Clip(norm=recipe.clip, each=recipe.clip_each),
            "warmup_epochs": min(10.0, epochs / 10),
            "checkpoint_every_epochs": automatic_interval(spec),
        },
        batch_size=batch_size,
        samples_per_class=samples_per_class,
        optimizer=_resolve_optimizer(spec, batch_size),
        # The recipe's value may be too large for a short run.
        head_only_epochs=min(head_only, epochs - 1),
        image_cache=image_cache,
    )


def precision_with(gpus: bool) -> Literal["bf16", "fp32"]:
    """Resolve `train.precision: auto` with or without GPUs."""
    return "bf16" if gpus else "fp32"


def optimizer_name(spec: JobSpec, batch: int) -> Literal["adamw", "adam", "sgd", "lars"]:
    """Return the spec's optimizer, or choose one by method, backbone and batch size."""
    name = spec.train.optimizer.name
    if name != "auto":
        return name
    # Metric learning starts from pretrained weights, and its papers fine-tune those with Adam(W).
    fine_tunes = spec.method.supervised and spec.backbone.pretrained is not None
    if fine_tunes or not spec.backbone.info.batch_norm:
        return "adamw"
    return "sgd" if batch <= 1024 else "lars"


def _base_lr(spec: JobSpec, batch: int) -> float:
    name, base = optimizer_name(spec, batch), spec.train.optimizer.base_lr
    return spec.method.recipe.lr.get(name, BASE_LR[name]) if base == "auto" else base


def _lr_factor(spec: JobSpec, batch: int) -> float:
    """Return the scaling of the base learning rate with the batch size."""
    linear = spec.train.optimizer.lr_scaling == "linear"
    return batch / 256 if linear else (batch / 256) ** 0.5


def check_learning_rate(spec: JobSpec, batch: int, problems: Problems) -> None:
    """Check that the scaled learning rate is not too large."""
    base, factor = _base_lr(spec, batch), _lr_factor(spec, batch)
    if spec.train.optimizer.lr == "auto" and base * factor > LARGEST_RATE:
        problems.add(
            "train.optimizer.base_lr",
            f"gives a learning rate of {base * factor:g} for a batch of {batch}",
            f"{base:g}",
            f"at most {LARGEST_RATE / factor:g} with this batch",
        )


def _resolve_optimizer(spec: JobSpec, batch: int) -> ResolvedOptimizer:
    optimizer = spec.train.optimizer
    name, base, decay = optimizer_name(spec, batch), _base_lr(spec, batch), optimizer.weight_decay
    from_recipe = spec.method.recipe.weight_decay.get(name, WEIGHT_DECAY[name])
    start, end = from_recipe if isinstance(from_recipe, tuple) else (from_recipe, from_recipe)
    return optimizer.without_auto(
        ResolvedOptimizer,
        {
            "lr": base * _lr_factor(spec, batch),
            "weight_decay": start,
            "weight_decay_end": end if decay == "auto" else decay,
        },
        name=name,
        base_lr=base,
    )
