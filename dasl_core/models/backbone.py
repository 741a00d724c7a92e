"""timm backbones, with a stem that suits the image size."""

from typing import Any

import timm
import torch
from torch import nn

from dasl_core.spec import BACKBONES, Backbone
from dasl_core.spec.resolve import SMALL_STEM_PATCHES


def build_backbone(backbone: Backbone) -> nn.Module:
    """The network, from random weights; images (N, C, H, W) to pooled features (N, num_features).

    Args:
        backbone: resolved, i.e. with numbers in place of "auto".
    """
    model: nn.Module = timm.create_model(**timm_arguments(backbone))
    for line in stem_lines(backbone):
        # The very lines that the model card gives to its reader: what is run is what is said.
        exec(line, {"torch": torch, "model": model})
    return model


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
