"""Weights of DINOv2 and DINOv3 in the layout of Hugging Face's transformers.

timm reads the layout of the authors' files, so these are renamed to that.
"""

import re
from typing import Any

import torch
from torch import Tensor

# Names in the layout of transformers, and those of the authors. Those of blocks are relative to the block.
_OUTSIDE = {
    "embeddings.cls_token": "cls_token",
    "embeddings.mask_token": "mask_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection.": "patch_embed.proj.",  # DINOv2
    "embeddings.patch_embeddings.": "patch_embed.proj.",  # DINOv3
    "layernorm.": "norm.",  # DINOv2
}
_IN_BLOCKS = {
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "attention.output.dense.": "attn.proj.",  # DINOv2
    "attention.o_proj.": "attn.proj.",  # DINOv3
    "mlp.weights_in.": "mlp.w12.",
    "mlp.weights_out.": "mlp.w3.",
}
_MLP = {"up_proj": "fc1", "down_proj": "fc2"}  # DINOv3
_GATED_MLP = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"}
_BLOCK = re.compile(r"(?:(?:model|encoder)\.)?layer\.(\d+)\.(.+)")
_QKV = re.compile(
    r"attention\.(?:attention\.(?P<v2>query|key|value)|(?P<v3>[qkv])_proj)\.(?P<kind>weight|bias)"
)


def to_authors_layout(weights: dict[str, Any]) -> dict[str, Any]:
    """Rename the weights of a `Dinov2Model` or `DINOv3ViTModel`; others are returned as they are."""
    # Other classes hold the network under a name, such as `dinov2.` beside a classifier.
    prefix = next(
        (k.partition("embeddings.")[0] for k in weights if "embeddings.cls_token" in k), None
    )
    if prefix is None:
        return weights
    weights = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    is_v3 = "embeddings.position_embeddings" not in weights
    gated = any(".gate_proj." in name for name in weights)
    renamed: dict[str, Any] = {}
    parts: dict[tuple[str, str], dict[str, Tensor]] = {}
    for name, value in weights.items():
        block = _BLOCK.fullmatch(name)
        if block is None:
            renamed[_outside(name, is_v3=is_v3)] = value
            continue
        number, rest = block.groups()
        if found := _QKV.fullmatch(rest):
            part = (found["v2"] or found["v3"])[0]
            parts.setdefault((number, found["kind"]), {})[part] = value
        else:
            renamed[f"blocks.{number}.{_in_block(rest, gated=gated)}"] = value
    for (number, kind), joined in parts.items():
        # DINOv3's keys have no bias.
        missing = torch.zeros_like(joined["q"])
        qkv = torch.cat([joined.get(part, missing) for part in "qkv"])
        renamed[f"blocks.{number}.attn.qkv.{kind}"] = qkv
    return renamed


def _outside(name: str, *, is_v3: bool) -> str:
    if name == "embeddings.register_tokens":
        return "storage_tokens" if is_v3 else "register_tokens"
    for theirs, authors in _OUTSIDE.items():
        if name.startswith(theirs):
            return authors + name.removeprefix(theirs)
    return name


def _in_block(name: str, *, gated: bool) -> str:
    for theirs, authors in _IN_BLOCKS.items():
        if name.startswith(theirs):
            return authors + name.removeprefix(theirs)
    layer, _, rest = name.removeprefix("mlp.").partition(".")
    known = _GATED_MLP if gated else _MLP
    return f"mlp.{known[layer]}.{rest}" if name.startswith("mlp.") and layer in known else name
