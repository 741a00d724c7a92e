"""Masked image modeling: block-wise masks of patches, and the tokens of a Vision Transformer under them."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ATTEMPTS = 10  # draws of a block until one fits
LOG_ASPECT = math.log(1 / 0.3)  # blocks are at most this long, height to width or width to height


def block_mask(height: int, width: int, share: float, source: random.Random) -> Tensor:
    """Draw rectangles of patches until a share of the image is masked (Bao et al., BEiT, ICLR 2022).

    Sizes and aspect ratios are those of iBOT's code. At most ``share * height * width`` patches are
    masked; fewer if no further block fits.

    Returns:
        (height, width) bool, true where a patch is masked.
    """
    mask = np.zeros((height, width), dtype=bool)  # faster than a tensor, patch by patch
    smallest, left = (min(height, width) // 3) ** 2, share * height * width
    attempts = ATTEMPTS
    while left >= 1 and attempts:
        attempts -= 1
        area, aspect = (
            source.uniform(smallest, left),
            math.exp(source.uniform(-LOG_ASPECT, LOG_ASPECT)),
        )
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows >= height or columns >= width:
            continue
        top, first = source.randint(0, height - rows), source.randint(0, width - columns)
        block = mask[top : top + rows, first : first + columns]
        added = rows * columns - int(block.sum())
        if 0 < added <= left:
            block[:] = True
            left -= added
            attempts = ATTEMPTS
    return torch.from_numpy(mask)


def check_has_tokens(backbone: nn.Module, name: str) -> None:
    """Raise a ValueError unless a timm model is a ViT with a class token and patch tokens."""
    has_patches = isinstance(getattr(backbone, "patch_embed", None), nn.Module)
    if not has_patches or getattr(backbone, "cls_token", None) is None:
        raise ValueError(
            f"backbone.name: {name} has no class token beside its patch tokens, which are compared; "
            "choose a Vision Transformer that has one, such as vit_small_patch16_224"
        )


def patch_grid(backbone: Any, images: Tensor) -> tuple[int, int]:
    """Height and width, in patches, of images (N, C, H, W)."""
    patch_height, patch_width = backbone.patch_embed.patch_size
    return images.shape[2] // patch_height, images.shape[3] // patch_width


def vit_tokens(
    backbone: Any, images: Tensor, masks: Tensor | None = None, mask_token: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the last layer's tokens of a timm `VisionTransformer` or `Eva`; register tokens are dropped.

    Args:
        masks: (N, P) bool: the patches whose embedding is replaced by `mask_token`, row by row.
        mask_token: (D,).

    Returns:
        The class token (N, D) and the patch tokens (N, P, D), normalized as for timm's features.
    """
    with _masked(backbone.patch_embed, masks, mask_token):
        tokens = backbone.fc_norm(backbone.forward_features(images))
    return tokens[:, 0], tokens[:, backbone.num_prefix_tokens :]


@contextmanager
def _masked(
    patch_embed: nn.Module, masks: Tensor | None, mask_token: Tensor | None
) -> Iterator[None]:
    """Replace the embeddings of masked patches, before positions are added."""
    if masks is None or mask_token is None:
        yield
        return

    def replace(module: nn.Module, inputs: Any, embeddings: Tensor) -> Tensor:
        # (N, P, D), or (N, height, width, D) if the network takes images of any size.
        hidden = masks.view(*embeddings.shape[:-1], 1)
        return torch.where(hidden, mask_token.to(embeddings.dtype), embeddings)

    handle = patch_embed.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
