"""Gradients of a batch that is computed in micro-batches, for tests of methods."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.methods import Method, Outputs, Step
from dasl_core.train.gradients import GradientComputer


def without_batch_statistics(method: Method) -> Method:
    """Set training mode, but normalize by running statistics, so that samples are independent."""
    method.train()
    for layer in method.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
    return method


def micro_batch_gradients(
    method: Method, views: Sequence[Tensor], micro_batches: int, step: Step | None = None
) -> tuple[dict[str, Tensor], Tensor, Outputs]:
    """Return a batch's gradients by parameter name, loss and outputs, computed in micro-batches."""
    method.zero_grad(set_to_none=True)
    computer = GradientComputer(
        method,
        method,
        lambda outputs, step, _: {"loss": method.loss(outputs, step)},
        micro_batches=micro_batches,
        is_mean=method.accumulates,
        autocast=nullcontext,
        scale=lambda loss: loss,
    )
    step = step or Step(0, 10, 5, torch.arange(len(views[0])))
    terms, outputs = computer.backward(views, step)
    named = method.named_parameters()
    gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
    return gradients, terms["loss"], outputs
