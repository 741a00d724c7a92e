"""Activation checkpointing: the backward pass recomputes the activations of a block."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dasl_core.models.batchnorm import untracked_statistics

# Where timm's models of the tested families have their blocks, or the stages of them.
_STAGES = (
    "blocks",
    "stages",
    "layers",
    *(f"{name}{n}" for name in ("layer", "s") for n in range(1, 5)),
)


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Turn on activation checkpointing in every block of a timm model of a tested family, in place.

    timm's `set_grad_checkpointing` would count each batch twice in BatchNorm's running statistics,
    since its second forward pass updates them again.
    """
    for name, module in backbone.named_children():
        for block in _blocks(module) if name in _STAGES else ():
            block.forward = partial(_forward, block, block.forward)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks in a container or a stage; of another module, itself."""
    if isinstance(blocks := getattr(module, "blocks", module), nn.Sequential | nn.ModuleList):
        return [block for child in blocks for block in _blocks(child)]
    return [module]


def _forward(block: nn.Module, forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), untracked_statistics(block)

    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **named)
