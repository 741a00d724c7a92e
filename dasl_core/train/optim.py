"""Optimizers through timm, and the schedule of the learning rate."""

import math

import torch
from timm.optim import create_optimizer_v2
from torch import nn

from dasl_core.spec import Optimizer, Train

# timm's names: "momentum" is SGD with momentum but without Nesterov, as the papers use it.
TIMM_NAMES = {"sgd": "momentum", "lars": "lars", "adamw": "adamw"}


def build_optimizer(settings: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a resolved spec.

    Biases, 1-D parameters and what the backbone's `no_weight_decay()` names get no weight decay and
    no LARS adaptation either.
    """
    assert isinstance(settings.lr, float), "resolve the spec first"
    assert isinstance(settings.weight_decay, float), "resolve the spec first"
    exempt = _no_decay_names(model)
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        group = kept if parameter.ndim <= 1 or name in exempt else decayed
        group.append(parameter)
    # timm's Lars would adapt only where there is decay, and so be plain SGD at a decay of 0.
    adapted = {"always_adapt": True} if settings.name == "lars" else {}
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        [
            {"params": decayed, "weight_decay": settings.weight_decay, **adapted},
            {"params": kept, "weight_decay": 0.0},
        ],
        opt=TIMM_NAMES[settings.name],
        lr=settings.lr,
        weight_decay=0.0,
        **({} if settings.name == "adamw" else {"momentum": settings.momentum}),
    )
    return optimizer


def learning_rate(step: int, steps_per_epoch: int, train: Train) -> float:
    """Rate of one optimizer step: linear warm-up from 0, then a half cosine to 0.

    A pure function of the step, so that a resumed run needs no saved schedule.
    """
    assert isinstance(train.optimizer.lr, float), "resolve the spec first"
    assert isinstance(train.warmup_epochs, float), "resolve the spec first"
    total = steps_per_epoch * train.epochs
    warmup = min(round(train.warmup_epochs * steps_per_epoch), total - 1)
    if step < warmup:
        return train.optimizer.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total - warmup)
    return train.optimizer.lr * 0.5 * (1 + math.cos(math.pi * progress))


def _no_decay_names(model: nn.Module) -> set[str]:
    """Full names of the parameters that timm modules inside `model` exempt from weight decay."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if callable(exempt := getattr(module, "no_weight_decay", None))
        for name in exempt()
    }
