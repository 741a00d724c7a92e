"""timm backbones, with a stem that suits the image size."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from timm.models import load_state_dict
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from dasl_core.models.warm_start import load_checkpoint, pretrained_path
from dasl_core.spec import BACKBONES, Backbone
from dasl_core.spec.resolve import SMALL_STEM_PATCHES


def build_backbone(backbone: Backbone, *, any_size: bool = False) -> nn.Module:
    """The network, from random weights or those of `backbone.pretrained`; images (N, C, H, W) to pooled features (N, num_features).

    Args:
        backbone: resolved, i.e. with numbers in place of "auto".
        any_size: take images of other sizes too, such as local crops. A ViT then interpolates its
            position embeddings; parameters and their names stay the same.

    Raises:
        ValueError: the pretrained weights are not there or do not fit.
    """
    extra: dict[str, Any] = {"drop_path_rate": backbone.drop_path} if backbone.drop_path else {}
    if any_size and BACKBONES[backbone.name].family == "vit":
        extra["dynamic_img_size"] = True
    arguments, stem = timm_arguments(backbone), stem_lines(backbone)
    start = None if backbone.pretrained is None else pretrained_path(backbone.pretrained)
    if start is not None and start.is_file():
        model = _from_timm_file(start, arguments | extra)
    else:
        model = timm.create_model(**arguments, **extra)
    for line in stem:
        # The very lines that the model card gives to its reader: what is run is what is said.
        exec(line, {"torch": torch, "model": model})
    if start is not None and start.is_dir():
        load_checkpoint(model, start, {"timm": arguments, "stem": stem})
    return model


def _from_timm_file(file: Path, arguments: dict[str, Any]) -> nn.Module:
    """timm fits its own weights: input channels, a ViT's positions and patches, no classifier."""
    try:
        model: nn.Module = timm.create_model(
            **(arguments | {"pretrained": True}), pretrained_cfg_overlay={"file": str(file)}
        )
        found = load_state_dict(str(file))
        if BACKBONES[arguments["model_name"]].family == "vit":
            found = checkpoint_filter_fn(found, model)
        # timm lets what is missing stay random, without a word.
        if missing := model.state_dict().keys() - found.keys():
            raise ValueError(f"it has no {min(missing)}")
    except (RuntimeError, ValueError, KeyError, OSError, UnpicklingError, SafetensorError) as error:
        raise ValueError(
            f"backbone.pretrained: {file} does not fit {arguments['model_name']}: {error}"
        ) from error
    return model


def feature_width(backbone: nn.Module) -> int:
    """Width of the pooled features of a timm model."""
    width = backbone.num_features
    assert isinstance(width, int), "a timm model says the width of its features"
    return width


def timm_arguments(backbone: Backbone) -> dict[str, Any]:
    """What `timm.create_model` takes to build the network; JSON-ready, kept in `model.json`."""
    arguments: dict[str, Any] = {
        "model_name": backbone.name,
        "pretrained": False,
        "num_classes": 0,
        "in_chans": backbone.in_channels,
    }
    if BACKBONES[backbone.name].family == "vit":
        assert isinstance(backbone.image_size, int), "resolve the spec first"
        arguments["img_size"] = backbone.image_size
        if backbone.stem == "small":
            arguments["patch_size"] = backbone.image_size // SMALL_STEM_PATCHES
    return arguments


def stem_lines(backbone: Backbone) -> list[str]:
    """Python lines that fit the stem of `model`, as timm made it, to small images; often none.

    The stem of He et al. 2016 (stride 4 before the first block) leaves nothing of a 32-pixel image;
    theirs for CIFAR has a 3x3 convolution of stride 1 and no pooling.
    """
    if backbone.stem != "small" or BACKBONES[backbone.name].family != "resnet":
        return []
    with torch.device("meta"):
        first = timm.create_model(backbone.name, in_chans=backbone.in_channels).conv1
    if isinstance(first, nn.Conv2d):
        stem = (
            f"model.conv1 = torch.nn.Conv2d({first.in_channels}, {first.out_channels}, "
            "kernel_size=3, stride=1, padding=1, bias=False)"
        )
    else:  # a "deep" stem: three 3x3 convolutions, the first of stride 2
        stem = "model.conv1[0].stride = (1, 1)"
    return [stem, "model.maxpool = torch.nn.Identity()"]
