"""The folder layout of Hugging Face's transformers, for timm's DINOv2 and DINOv3 networks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dasl_core.export.card import transformers_card
from dasl_core.export.hub import CONFIG, write_folder
from dasl_core.export.network import ExportError, exported_network, preprocessing
from dasl_core.models.transformers_layout import is_gated, to_transformers_layout
from dasl_core.spec import ResolvedBackbone, ResolvedJobSpec

PROCESSOR = "preprocessor_config.json"
BILINEAR = 2  # Pillow's number


def write_transformers_folder(
    weights: Mapping[str, Tensor],
    spec: ResolvedJobSpec,
    model: dict[str, Any],
    metrics: dict[str, Any],
    folder: Path,
) -> None:
    """Write a folder for `transformers.AutoModel.from_pretrained(FOLDER)`, with a model card.

    Arguments as for `write_hub_folder`.

    Raises:
        ExportError: `model` or `metrics` are damaged, or transformers has no class for the backbone.
    """
    network = exported_network(spec.backbone, weights)
    config = transformers_config(network, weights, spec.backbone)
    write_folder(
        folder,
        {CONFIG: config, PROCESSOR: processor_config(spec)},
        to_transformers_layout(weights),
        spec,
        lambda: transformers_card(spec, model, metrics, _features(network)),
    )


def transformers_class(name: str) -> str:
    """Return the name of transformers' class for a timm backbone; an ExportError if there is none."""
    if name.endswith("_reg4_dinov2"):
        return "Dinov2WithRegistersModel"
    if name.endswith("_dinov2"):
        return "Dinov2Model"
    if name.endswith(("_dinov3", "_dinov3_qkvb")):
        return "DINOv3ViTModel"
    raise ExportError(
        f"the format transformers is for timm's networks of DINOv2 and DINOv3 (vit_*_dinov2, vit_*_dinov3), "
        f"not for {name}; use the format hf, or onnx for a ResNet with the stem for small images"
    )


def transformers_config(
    network: nn.Module, weights: Mapping[str, Tensor], backbone: ResolvedBackbone
) -> dict[str, Any]:
    """Build the content of `config.json`: the class and the sizes of its layers."""
    class_name = transformers_class(backbone.name)
    patches = weights["patch_embed.proj.weight"]
    attention, norm = network.get_submodule("blocks.0.attn"), network.get_submodule("norm")
    gated = is_gated(weights)
    config: dict[str, Any] = {
        "architectures": [class_name],
        "hidden_size": patches.shape[0],
        "num_hidden_layers": sum(name.endswith(".attn.qkv.weight") for name in weights),
        "num_attention_heads": attention.num_heads,
        "layer_norm_eps": norm.eps,
        "num_channels": backbone.in_channels,
        "image_size": backbone.image_size,
        "patch_size": patches.shape[-1],
    }
    if "reg_token" in weights:
        config["num_register_tokens"] = weights["reg_token"].shape[1]
    if class_name != "DINOv3ViTModel":
        registers = "reg_token" in weights
        return config | {
            "model_type": "dinov2_with_registers" if registers else "dinov2",
            # Also for gated networks, whose class uses two thirds of it.
            "mlp_ratio": 4,
            "hidden_act": "gelu",
            "qkv_bias": True,
            "use_swiglu_ffn": gated,
        }
    has_bias = "blocks.0.attn.q_bias" in weights
    return config | {
        "model_type": "dinov3_vit",
        "intermediate_size": weights["blocks.0.mlp.fc2.weight"].shape[1],
        "hidden_act": "silu" if gated else "gelu",
        "use_gated_mlp": gated,
        "query_bias": has_bias,
        "key_bias": False,
        "value_bias": has_bias,
        "proj_bias": True,
        "mlp_bias": True,
        "rope_theta": 100.0,
    }


def processor_config(spec: ResolvedJobSpec) -> dict[str, Any]:
    """Build the content of `preprocessor_config.json`: central square, resizing, normalization."""
    images = preprocessing(spec)
    size = images["image_size"]
    low, high = spec.backbone.window
    scale = 1 / (high - low)
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": images["channels"] == 3 and "window" not in images,
        "do_resize": True,
        "size": {"shortest_edge": round(size / images["crop_pct"])},
        "resample": BILINEAR,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": scale,
        "do_normalize": True,
        # x * scale - (mean + low * scale) is (x - low) * scale - mean.
        "image_mean": [mean + low * scale for mean in images["mean"]],
        "image_std": images["std"],
    }


def _features(network: nn.Module) -> str:
    """Return the Python expression of the features from `tokens`, transformers' last hidden state."""
    if network.global_pool == "token":
        return "tokens[:, 0]"
    assert network.global_pool == "avg", (
        "timm's networks of DINOv2 and DINOv3 have no other pooling"
    )
    return f"tokens[:, {network.num_prefix_tokens}:].mean(dim=1)"
