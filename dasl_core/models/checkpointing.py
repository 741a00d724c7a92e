"""Activation checkpointing: the backward pass recomputes the activations of a block."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dasl_core.models.batchnorm import untracked_statistics


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Turn on activation checkpointing in every block of a timm ResNet or ViT, in place.

    timm's `set_grad_checkpointing` would count each batch twice in BatchNorm's running statistics,
    since its second forward pass updates them again.
    """
    for block in _blocks(backbone):
        block.forward = partial(_forward, block, block.forward)


def _blocks(backbone: nn.Module) -> list[nn.Module]:
    if isinstance(blocks := getattr(backbone, "blocks", None), nn.Sequential):
        return list(blocks)
    stages = [backbone.get_submodule(f"layer{number}") for number in range(1, 5)]
    return [block for stage in stages for block in stage.children()]


def _forward(block: nn.Module, forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), untracked_statistics(block)

    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **named)
