"""timm backbones, with a stem for small images if the spec sets it."""

import functools
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any, Literal, cast

import timm
import torch
from timm.models import load_pretrained, model_entrypoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.models.input_bands import adapt_first_convolutions
from dasl_core.models.transformers_layout import to_authors_layout
from dasl_core.models.warm_start import (
    check_finite,
    check_normalization,
    has_same_shapes,
    load_checkpoint,
    pretrained_path,
    read_weights,
    with_last_norm_of,
)
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.backbones import BACKBONES, SMALL_STEM_PATCHES, Stem
from dasl_core.spec.weights import stem_problem
from dasl_core.spec.weights_record import FIRST_CONVOLUTION

# Of torch's Dropout and timm's DropPath and PatchDropout.
_DROP_RATES = ("p", "drop_prob", "prob")


def depends_on_mode(network: nn.Module) -> bool:
    """Whether a network computes something else than in eval mode, because of a layer of torch or timm."""
    return any(
        layer.training
        and (isinstance(layer, _BatchNorm) or any(getattr(layer, rate, 0) for rate in _DROP_RATES))
        for layer in network.modules()
    )


def build_backbone(backbone: ResolvedBackbone, *, any_size: bool = False) -> nn.Module:
    """Build the network from images (N, C, H, W) to pooled features (N, num_features).

    Its weights are random, or those of `backbone.pretrained`.

    Args:
        backbone: resolved, i.e. with numbers in place of "auto".
        any_size: accept images of other sizes too, such as local crops, if the network can. A ViT then
            interpolates its position embeddings; parameters and their names stay the same.

    Raises:
        ValueError: the pretrained weights do not exist, cannot be read, are not finite or do not fit;
            the message names `backbone.pretrained` and the file. Or their files record another
            normalization; the message names `backbone.mean` and what to set. Or the network lacks the
            class token that is pooled; the message names `backbone.name`.
    """
    extra: dict[str, Any] = {"drop_path_rate": backbone.drop_path} if backbone.drop_path else {}
    if any_size and backbone.info.sizes == "dynamic":
        extra["dynamic_img_size"] = True
    arguments, stem = timm_arguments(backbone), stem_lines(backbone)
    if backbone.pooling == "token" and not backbone.info.class_token:
        # timm would return some networks' first patch in its place.
        raise ValueError(
            f"backbone.name: {backbone.name} has no class token, which is trained or pooled; choose a Vision "
            "Transformer that has one, such as vit_small_patch16_224, or backbone.pooling: timm if the "
            "method compares pooled features"
        )
    model: nn.Module = timm.create_model(**arguments, **extra)
    fit_stem(model, backbone.stem)
    if backbone.pretrained is None:
        return model
    start = pretrained_path(backbone.pretrained)
    if start.is_dir():
        load_checkpoint(model, start, {"timm": arguments, "stem": stem})
    else:
        weights = read_weights(start)
        first = getattr(weights.get(FIRST_CONVOLUTION), "shape", ())
        if problem := stem_problem(first, backbone):
            raise ValueError(f"backbone.pretrained: {start} {problem}")
        if has_same_shapes(weights, model):
            model.load_state_dict(weights)  # such as `backbone.safetensors` of a checkpoint
        else:
            model = _from_timm_file(start, weights, arguments | extra, backbone)
    check_finite(model, start)
    check_normalization(backbone, start)
    return model


def fit_stem(model: nn.Module, kind: Stem) -> None:
    """Fit the stem of a timm model to small images, in place. The model card prints it: `stem_lines`.

    It changes only ResNets: a ViT is built with small patches, see `timm_arguments`.
    """
    first = getattr(model, "conv1", None)
    if kind == "standard" or first is None:
        return
    if isinstance(first, nn.Conv2d):
        model.conv1 = nn.Conv2d(
            first.in_channels, first.out_channels, kernel_size=3, stride=1, padding=1, bias=False
        )
    else:  # a "deep" stem: three 3x3 convolutions, the first of stride 2
        first[0].stride = (1, 1)
    model.maxpool = nn.Identity()


def _from_timm_file(
    file: Path, weights: dict[str, Any], arguments: dict[str, Any], backbone: ResolvedBackbone
) -> nn.Module:
    """Build a timm model whose weights timm itself loads from a file.

    timm adapts them to the input channels and to the positions and patches of a ViT, and drops the
    classifier.

    Args:
        weights: the content of the file.
        backbone: its stem is that of the weights of a ResNet; a deep one may get another stride.

    Raises:
        ValueError: the weights do not fit the model.
    """
    name = arguments["model_name"]
    try:
        model: nn.Module = timm.create_model(**arguments)
        fit_stem(model, backbone.stem)
        kept = _Kept(name, backbone.extra_bands)
        # For some ViTs timm would otherwise expect weights in the format of JAX.
        source = _configuration(model) | {"state_dict": weights, "custom_load": False}
        with redirect_stdout(sys.stderr):  # some of timm's filters print
            load_pretrained(
                model,
                pretrained_cfg=source,
                num_classes=0,
                # timm leaves three channels as they are: the filter has adapted them.
                in_chans=arguments["in_chans"] if backbone.extra_bands == "repeat" else 3,
                filter_fn=kept,
                strict=False,
            )
        names, expected = kept.names, model.state_dict().keys()
        classifier = tuple(f"{part}." for part in _layers(model, "classifier"))
        # timm silently leaves missing weights random, and drops those that it does not know.
        if missing := expected - names:
            raise ValueError(f"it has no {min(missing)}")
        other = {key for key in names - expected if not key.startswith(classifier)}
        if other and (other := other - _names_with_classes(name)):
            raise ValueError(f"it is of another network, which has {min(other)}")
    except Exception as error:  # malformed files raise arbitrary exception types
        advice, own = "", BACKBONES[name].image_size
        if "size mismatch for" in str(error) and arguments.get("img_size", own) != own:
            advice = f"; weights that timm does not resample need backbone.image_size: {own}"
        raise ValueError(
            f"backbone.pretrained: {file} does not fit {name}: {error}{advice}"
        ) from error
    return model


class _Kept:
    """timm's filter of a model's published weights, which keeps the names of what it returns.

    It adapts them to the bands of images, unless `extra_bands` is "repeat": that is what timm does.
    """

    def __init__(self, name: str, extra_bands: Literal["repeat", "mean", "random"]) -> None:
        self.name, self.extra_bands, self.convert = name, extra_bands, _filter_of(name)
        self.names: set[str] = set()

    def __call__(self, weights: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        weights = to_authors_layout(weights)
        converted = weights
        if self.convert is not None:  # some filters do not need the model
            takes_model = "model" in signature(self.convert).parameters
            converted = self.convert(weights, *([model] if takes_model else []))
        converted = with_last_norm_of(model, converted)
        if self.extra_bands != "repeat":
            first = _layers(model, "first_conv")
            converted = adapt_first_convolutions(converted, model, first, self.extra_bands)
        self.names = set(converted)
        self._check_biases(weights)
        return converted

    def _check_biases(self, weights: dict[str, Any]) -> None:
        """Raise a ValueError if timm dropped biases of attention other than 0, as it does if the model has none."""
        if any(key.endswith(("q_bias", "q_proj.bias", "qkv.bias")) for key in self.names):
            return
        for key, bias in weights.items():
            if key.endswith("qkv.bias"):
                query, _, value = bias.chunk(3)  # that of keys is masked
                if query.any() or value.any():
                    raise ValueError(
                        f"its {key} is not 0, and {self.name} has none; choose backbone.name: "
                        f"{self.name}_qkvb, timm's model with these biases"
                    )


def _filter_of(name: str) -> Callable[..., dict[str, Any]] | None:
    """Return the function by which timm converts the published weights of a model, if it has one.

    timm has no interface to it, but a name that most of its modules share.
    """
    module = sys.modules[model_entrypoint(name).__module__]
    for filter_name in ("checkpoint_filter_fn", "_filter_fn"):
        convert = getattr(module, filter_name, None)
        if callable(convert):
            return cast(Callable[..., dict[str, Any]], convert)
    return None


def _configuration(model: nn.Module) -> dict[str, Any]:
    configuration = model.pretrained_cfg
    assert isinstance(configuration, dict), "timm keeps its models' configuration"
    return configuration


def _layers(model: nn.Module, kind: Literal["first_conv", "classifier"]) -> tuple[str, ...]:
    """Names of the layers of a timm model that take the image, or that follow its features."""
    names = _configuration(model).get(kind) or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _names_with_classes(name: str) -> set[str]:
    """Names of all weights of a timm model with classes: some have a BatchNorm before the classifier."""
    with torch.device("meta"):
        return set(timm.create_model(name).state_dict())


def feature_width(backbone: nn.Module) -> int:
    """Width of the pooled features of a timm model: what it returns without a classifier."""
    # Such as MobileNetV3's layer after pooling, which is wider than `num_features`.
    width = getattr(backbone, "head_hidden_size", None) or backbone.num_features
    assert isinstance(width, int), "every timm model has num_features"
    return width


def timm_arguments(backbone: ResolvedBackbone) -> dict[str, Any]:
    """The arguments with which `timm.create_model` builds the network; JSON-ready, in `model.json`."""
    arguments: dict[str, Any] = {
        "model_name": backbone.name,
        "pretrained": False,
        "num_classes": 0,
        "in_chans": backbone.in_channels,
    }
    if backbone.pooling != "timm":
        arguments["global_pool"] = {"average_max": "avgmax", "token": "token"}[backbone.pooling]
    if backbone.info.sizes in ("dynamic", "built"):
        arguments["img_size"] = backbone.image_size
        if backbone.stem == "small":
            arguments["patch_size"] = backbone.image_size // SMALL_STEM_PATCHES
    return arguments


def stem_lines(backbone: ResolvedBackbone) -> list[str]:
    """Return the Python lines that fit the stem of `model` to small images, for the model card.

    They do what `fit_stem` does to a `model` that timm has built. Without a small stem there are none.

    The stem of He et al. 2016 has stride 4 before the first block, too much for images of 32 pixels;
    the stem of their CIFAR networks has a 3x3 convolution of stride 1 and no pooling.
    """
    if backbone.stem != "small" or backbone.info.family != "resnet":
        return []
    first = _small_first_convolution(backbone.name, backbone.in_channels)
    return [first, "model.maxpool = torch.nn.Identity()"]


@functools.cache
def _small_first_convolution(name: str, in_channels: int) -> str:
    """The line that turns the first convolution of a ResNet into one of stride 1.

    Cached: it builds a model on the meta device, which takes as long as building the network, and
    each build and each checkpoint needs it.
    """
    with torch.device("meta"):
        first = timm.create_model(name, in_chans=in_channels).conv1
    if isinstance(first, nn.Conv2d):
        return (
            f"model.conv1 = torch.nn.Conv2d({first.in_channels}, {first.out_channels}, "
            "kernel_size=3, stride=1, padding=1, bias=False)"
        )
    # A "deep" stem: three 3x3 convolutions, the first of stride 2.
    return "model.conv1[0].stride = (1, 1)"
