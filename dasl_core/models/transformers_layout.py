"""Weights of DINOv2 and DINOv3 in the layout of Hugging Face's transformers.

timm reads the layout of the authors' files, so weights to start from are renamed to that. Exports are renamed
from timm's layout.
"""

import re
from collections.abc import Mapping
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
# DINOv2 in memory of transformers 5; its files have both as one.
_GATE = re.compile(r"mlp\.(?P<part>gate|up)_proj\.(?P<kind>weight|bias)")


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
    gates: dict[tuple[str, str], dict[str, Tensor]] = {}
    for name, value in weights.items():
        block = _BLOCK.fullmatch(name)
        if block is None:
            renamed[_outside(name, is_v3=is_v3)] = value
            continue
        number, rest = block.groups()
        if found := _QKV.fullmatch(rest):
            part = (found["v2"] or found["v3"])[0]
            parts.setdefault((number, found["kind"]), {})[part] = value
        elif (found := _GATE.fullmatch(rest)) and not is_v3:
            gates.setdefault((number, found["kind"]), {})[found["part"]] = value
        else:
            renamed[f"blocks.{number}.{_in_block(rest, gated=gated)}"] = value
    for (number, kind), joined in parts.items():
        # DINOv3's keys have no bias.
        missing = torch.zeros_like(joined["q"])
        qkv = torch.cat([joined.get(part, missing) for part in "qkv"])
        renamed[f"blocks.{number}.attn.qkv.{kind}"] = qkv
    for (number, kind), joined in gates.items():
        renamed[f"blocks.{number}.mlp.w12.{kind}"] = torch.cat([joined["gate"], joined["up"]])
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


# Names in timm's layout, and those of transformers' published files. Those of blocks are relative to the block.
_V2_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
    "norm.": "layernorm.",
}
_V2_BLOCK = {
    "norm": "norm",
    "attn.proj.": "attention.output.dense.",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
    "mlp.": "mlp.",
}
_V2_GATED_MLP = {"mlp.fc1.": "mlp.weights_in.", "mlp.fc2.": "mlp.weights_out."}
_V3_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "patch_embed.proj.": "embeddings.patch_embeddings.",
    "norm.": "norm.",
}
_V3_BLOCK = {
    "norm": "norm",
    "attn.proj.": "attention.o_proj.",
    "attn.q_bias": "attention.q_proj.bias",
    "attn.v_bias": "attention.v_proj.bias",
    "gamma_1": "layer_scale1.lambda1",
    "gamma_2": "layer_scale2.lambda1",
    "mlp.fc1.": "mlp.up_proj.",
    "mlp.fc1_g.": "mlp.gate_proj.",
    "mlp.fc1_x.": "mlp.up_proj.",
    "mlp.fc2.": "mlp.down_proj.",
}
_TIMM_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def is_gated(weights: Mapping[str, Tensor]) -> bool:
    """Whether the MLPs of a network of DINOv2 or DINOv3, in timm's layout, have a gate."""
    # DINOv2's gate and input are one layer, which is twice as wide as the output.
    inputs = weights.get("blocks.0.mlp.fc1.bias")
    return inputs is None or len(inputs) != weights["blocks.0.mlp.fc2.weight"].shape[1]


def to_transformers_layout(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of timm's network of DINOv2 or DINOv3 to those of transformers' class.

    Every version of transformers reads these names; its version 5 has others in memory.
    """
    is_v3 = "pos_embed" not in weights
    layers = "layer." if is_v3 else "encoder.layer."
    outside = _V3_NAMES if is_v3 else _V2_NAMES
    inside = _V3_BLOCK if is_v3 else (_V2_GATED_MLP if is_gated(weights) else {}) | _V2_BLOCK
    cls_token = weights["cls_token"]
    renamed = {
        # Only training replaces patches by it, and the features do not depend on it.
        "embeddings.mask_token": torch.zeros_like(cls_token if is_v3 else cls_token[0])
    }
    for name, value in weights.items():
        block = _TIMM_BLOCK.fullmatch(name)
        if block is None:
            renamed[_renamed(name, outside)] = value
            continue
        prefix, rest = f"{layers}{block[1]}.", block[2]
        if rest.startswith("attn.qkv."):
            kind = rest.removeprefix("attn.qkv.")
            for part, its in zip(("query", "key", "value"), value.chunk(3), strict=True):
                layer = f"{part[0]}_proj" if is_v3 else f"attention.{part}"
                renamed[f"{prefix}attention.{layer}.{kind}"] = its
        else:
            renamed[prefix + _renamed(rest, inside)] = value
    if "reg_token" in weights and not is_v3:
        # timm adds the position of the class token to the token itself.
        positions = renamed["embeddings.position_embeddings"]
        row = torch.zeros_like(cls_token)
        renamed["embeddings.position_embeddings"] = torch.cat([row, positions], dim=1)
    return {name: value.contiguous() for name, value in renamed.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    start = next(start for start in names if name.startswith(start))
    return names[start] + name.removeprefix(start)
