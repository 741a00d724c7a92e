"""Arguments that make large timm models small, with all else of their classes."""

from typing import Any

VIT: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 2}
SHALLOW: dict[str, dict[str, Any]] = {
    "vit_small_patch14_dinov2": VIT,
    "vit_small_patch14_reg4_dinov2": VIT,
    "vit_small_patch16_dinov3": VIT,
    "eva02_tiny_patch14_224": VIT,
    "vit_tiny_patch16_dinov3_qkvb": VIT,
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 16,
        "depths": (1, 1, 1, 1),
        "num_heads": (1, 1, 2, 2),
    },
}
