"""Optimizers from timm, and schedules of learning rate and weight decay as functions of the step."""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from torch import nn

from dasl_core.distributed import is_sharded
from dasl_core.methods import Method
from dasl_core.spec import ResolvedOptimizer, ResolvedTrain

# timm's names: "momentum" is SGD with momentum but without Nesterov, as the papers use it.
TIMM_NAMES = {"sgd": "momentum", "lars": "lars", "adamw": "adamw", "adam": "adam"}


def build_optimizer(
    settings: ResolvedOptimizer, model: nn.Module, rates: Mapping[str, float]
) -> torch.optim.Optimizer:
    """Build the optimizer of a resolved spec.

    Biases, 1-D parameters and those in the backbone's `no_weight_decay()` get neither weight decay nor LARS
    adaptation. Each group has `rate`, its factor on the learning rate, and `decays`, whether it has weight decay.

    Args:
        rates: factors on the learning rate by parameter name, if not 1.
    """
    exempt = _no_decay_names(model)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and name not in exempt
            groups[rates.get(name, 1.0), decays].append(parameter)
    # One pass over the weights: on a CPU in 0.4 of the time for SGD, and 0.2 for AdamW.
    # FSDP's tensors have it for Adam.
    has_kernel = not any(
        weight.is_meta or (settings.name == "sgd" and is_sharded(weight))
        for weights in groups.values()
        for weight in weights
    )
    # timm's Lars adapts only groups with decay, so it would be plain SGD at a decay of 0.
    lars = settings.name == "lars"
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        [
            {
                "params": parameters,
                "weight_decay": settings.weight_decay if decays else 0.0,
                "rate": rate,
                "decays": decays,
                **({"always_adapt": True} if lars and decays else {}),
            }
            for (rate, decays), parameters in groups.items()
        ],
        opt=TIMM_NAMES[settings.name],
        lr=settings.lr,
        weight_decay=0.0,
        **({} if settings.name in ("adamw", "adam") else {"momentum": settings.momentum}),
        **({"fused": True} if has_kernel and not lars else {}),
        **({"trust_coeff": settings.larc, "trust_clip": True} if settings.larc else {}),
    )
    optimizer.register_step_pre_hook(lambda this, *_: create_momenta(this))
    return optimizer


def create_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Create momenta of 0, which do not change the first step.

    Fused kernels refuse weights with momenta together with others, whose gradients are new, such as those of a thawed
    backbone.
    """
    for group in optimizer.param_groups:
        if not group.get("momentum"):
            continue
        for weight in group["params"]:
            state = optimizer.state[weight]
            if weight.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(weight)


def set_schedules(
    optimizer: torch.optim.Optimizer, step: int, steps_per_epoch: int, train: ResolvedTrain
) -> float:
    """Set the learning rate and weight decay of every group for one step; return the rate."""
    lr = learning_rate(step, steps_per_epoch, train)
    decay = weight_decay(step, steps_per_epoch, train)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["rate"]
        group["weight_decay"] = decay if group["decays"] else 0.0
    return lr


def learning_rate(step: int, steps_per_epoch: int, train: ResolvedTrain) -> float:
    """Compute the learning rate of a step: linear warm-up from 0, then a half cosine or steps.

    The cosine ends at `lr_end` of the peak; `step_decay` counts from the start. A pure function of the
    step: a resumed run needs no saved schedule.
    """
    peak, end = train.optimizer.lr, train.optimizer.lr * train.optimizer.lr_end
    total = steps_per_epoch * train.epochs
    warmup = min(round(train.warmup_epochs * steps_per_epoch), total - 1)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if (decay := train.optimizer.step_decay) is not None:
        epochs = (step + 0.5) / steps_per_epoch  # half a step rounds the falls to whole steps
        if isinstance(decay.epochs, tuple):
            falls = sum(epochs >= epoch for epoch in decay.epochs)
        else:
            falls = int(epochs / decay.epochs)
        return float(peak * decay.factor**falls)
    progress = (step - warmup) / max(1, total - warmup)
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))


def weight_decay(step: int, steps_per_epoch: int, train: ResolvedTrain) -> float:
    """Compute the weight decay of a step: a half cosine from `weight_decay` to `weight_decay_end`."""
    start, end = train.optimizer.weight_decay, train.optimizer.weight_decay_end
    progress = step / max(1, steps_per_epoch * train.epochs)
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))


def learning_rate_factors(settings: ResolvedOptimizer, method: Method) -> dict[str, float]:
    """Return factors on the learning rate by parameter name, from layer-wise decay, heads and the method.

    Raises:
        ValueError: layer-wise decay is set for a backbone whose layers timm cannot order.
    """
    rates: dict[str, float] = {}
    method_prefixes = tuple(method.learning_rates())
    if settings.head_lr != 1:
        rates = {
            name: settings.head_lr
            for name, _ in method.named_parameters()
            if not name.startswith(("backbone.", *method_prefixes))
        }
    if settings.layer_decay < 1:
        # timm would only warn, and use one rate for all.
        if not any(hasattr(method.backbone, name) for name in ("group_matcher", "pretrained_cfg")):
            raise ValueError(
                "train.optimizer.layer_decay: must be 1 for this backbone: it has no group_matcher, by which "
                "timm orders layers"
            )
        names = {id(p): f"backbone.{name}" for name, p in method.backbone.named_parameters()}
        groups = param_groups_layer_decay(method.backbone, layer_decay=settings.layer_decay)
        for group in groups:
            rates |= {names[id(p)]: float(group["lr_scale"]) for p in group["params"]}
    for prefix, factor in method.learning_rates().items():
        for name, _ in method.named_parameters():
            if name == prefix or name.startswith(f"{prefix}."):
                rates[name] = rates.get(name, 1.0) * factor
    return rates


def _no_decay_names(model: nn.Module) -> set[str]:
    """Return the full names of parameters that timm modules in `model` exempt from weight decay."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if callable(exempt := getattr(module, "no_weight_decay", None))
        for name in exempt()
    }
