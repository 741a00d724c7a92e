"""Generate `dasl_core/spec/backbones.json`: `python -m dasl_core.models.catalog`, some 25 minutes."""

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import DropPath
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.models.freeze import count_blocks
from dasl_core.models.frequent_shapes import frequent_shapes
from dasl_core.models.image_cost import ImageCost, image_cost
from dasl_core.models.masked_vit import patch_grid, vit_tokens
from dasl_core.models.shapes_only import shapes_only

# Two modules of timm have other names here, which jobs and clients already know.
FAMILIES = {"resnet": "resnet", "vision_transformer": "vit"}
# An odd and an even number of units: whether a network takes them says that it takes all.
COUNTS = (5, 8)
STRIDE = 32
SMALLEST_SIZE, LARGEST_SIZE = 8, 1024  # that a job may have
STEP = 8  # in pixels, between the image sizes that are tried first
# By which networks refuse a size.
REFUSALS = (
    AssertionError,
    AttributeError,
    IndexError,
    RuntimeError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)


def describe(name: str, module: str) -> dict[str, Any] | None:
    """Describe one timm model, without memory for its weights: `BackboneInfo` without `tested`.

    Returns:
        None if it gives no features (N, d) of images with 3 channels.
    """
    model = _build(name)
    config = model.default_cfg
    assert isinstance(config, dict), "timm keeps its models' configuration"
    family, size = FAMILIES.get(module, module), config["input_size"][-1]
    patch = _patch_size(model) if family in ("vit", "eva") else None
    # Models of one class behave alike, apart from their layers and what their configuration says: of one
    # class, some are convolutional and others have attention over a fixed number of positions.
    layers = frozenset(type(layer) for layer in model.modules())
    kind = (module, type(model), patch, config.get("fixed_input_size", False), layers)
    if kind not in _KINDS:
        _KINDS[kind] = _kind(name, model, size, patch)
    if (behavior := _KINDS[kind]) is None:
        return None
    sizes = behavior["sizes"]
    multiple = size if sizes == "fixed" else behavior["size_multiple"]
    network = _build(name, dynamic_img_size=True) if sizes == "dynamic" else model
    weights = dict(model.named_parameters())
    batch_norm = any(isinstance(layer, _BatchNorm) for layer in model.modules())
    return {
        "family": family,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "features": getattr(model, "head_hidden_size", None) or model.num_features,
        "batch_norm": batch_norm,
        "drop_path": behavior["drop_path"],
        "image_size": size,
        "sizes": sizes,
        "size_multiple": multiple,
        # It depends on strides, which differ within a kind.
        "smallest_size": _smallest_size(name, network, sizes, multiple),
        "patch_size": patch,
        "class_token": getattr(model, "cls_token", None) is not None,
        "token_patch_size": _token_patch_size(network, size),
        "learned_positions": _has_learned_positions(model),
        "blocks": _blocks(model),
        **_cost(model, size),
        "normalizations": _normalizations(name),
        "weights": frequent_shapes(weights, batch_norm=batch_norm),
    }


_KINDS: dict[tuple[Any, ...], dict[str, Any] | None] = {}


def _kind(name: str, model: nn.Module, size: int, patch: int | None) -> dict[str, Any] | None:
    """Find out how a model behaves; None if it gives no features."""
    if not _takes(model, (size,)):
        return None
    sizes, multiple = _sizes(name, model, patch)
    return {"sizes": sizes, "size_multiple": multiple, "drop_path": _has_drop_path(name)}


def _build(name: str, **arguments: Any) -> nn.Module:
    with shapes_only():
        model: nn.Module = timm.create_model(name, num_classes=0, **arguments)
    return model.eval()


@torch.no_grad()
def _takes(model: nn.Module, sizes: Sequence[int]) -> bool:
    """Whether a network gives features (N, d) of images of all of these sizes."""
    for size in sizes:
        try:
            with shapes_only():
                outputs = model(torch.empty(2, 3, size, size))
        except REFUSALS:
            return False
        width = getattr(model, "head_hidden_size", None) or model.num_features
        if not isinstance(outputs, torch.Tensor) or outputs.shape != (2, width):
            return False
    return True


def _has_drop_path(name: str) -> bool:
    try:
        model = _build(name, drop_path_rate=0.1)
    except TypeError:  # it does not know the argument
        return False
    return any(isinstance(layer, DropPath) for layer in model.modules())


def _patch_size(model: nn.Module) -> int:
    patch: int = model.get_submodule("patch_embed").patch_size[0]  # type: ignore[assignment,index]
    return patch


def _sizes(name: str, model: nn.Module, patch: int | None) -> tuple[str, int]:
    """Find which image sizes a network takes: `sizes` and `size_multiple` of `BackboneInfo`."""
    if patch is None:
        for multiple, sizes in ((1, (97, 162)), (STRIDE, _multiples(STRIDE))):
            if _takes(model, sizes):
                return "any", multiple
    for multiple in (patch, STRIDE) if patch else (STRIDE,):
        sizes = _multiples(multiple)
        for kind, extra in (("dynamic", {"dynamic_img_size": True}), ("built", {})):
            built = sizes if kind == "built" else sizes[:1]
            networks = _built(name, built, extra)
            if kind == "dynamic" and networks and _takes(networks[0], sizes):
                return kind, multiple
            if networks and all(_takes(n, (s,)) for n, s in zip(networks, built, strict=True)):
                return "built", multiple
    return "fixed", 0


def _built(name: str, sizes: Sequence[int], arguments: dict[str, Any]) -> list[nn.Module]:
    """Build the network for each of these sizes; an empty list if it refuses one, or an argument."""
    try:
        return [_build(name, img_size=size, **arguments) for size in sizes]
    except REFUSALS:
        return []


def _multiples(multiple: int) -> tuple[int, ...]:
    return tuple(count * multiple for count in COUNTS)


def _smallest_size(name: str, network: nn.Module, sizes: str, multiple: int) -> int:
    """Return the side of the smallest images of which a network computes features and can be trained."""
    if sizes == "fixed":
        return multiple

    def computes(side: int) -> bool:
        networks = _built(name, [side], {}) if sizes == "built" else [network]
        return any(_takes(each.train(), (side,)) for each in networks)

    step = max(STEP, multiple)
    side = next(side for side in range(step, LARGEST_SIZE + 1, step) if computes(side))
    smaller = range(side - multiple, max(side - step, SMALLEST_SIZE - 1), -multiple)
    return min([side, *takewhile(computes, smaller)])


@torch.no_grad()
def _token_patch_size(network: Any, size: int) -> int | None:
    """Return the side of the patches of a network that iBOT can mask; None: it cannot."""
    if getattr(network, "cls_token", None) is None:
        return None
    try:
        with shapes_only():
            images = torch.empty(2, 3, size, size)
            height, width = patch_grid(network, images)
            masks = torch.empty(2, height * width, dtype=torch.bool)
            token, patches = vit_tokens(network, images, masks, torch.empty(network.num_features))
    except REFUSALS:
        return None
    shapes = (2, network.num_features), (2, height * width, network.num_features)
    return size // height if (token.shape, patches.shape) == shapes else None


def _has_learned_positions(model: nn.Module) -> bool:
    """Whether a network learns one position embedding for each patch, as `fix_sincos_positions` needs."""
    positions = getattr(model, "pos_embed", None)
    return (
        isinstance(positions, nn.Parameter) and positions.ndim == 3 and positions.shape[2] % 4 == 0
    )


def _blocks(model: nn.Module) -> int | None:
    """Count the blocks that `freeze_blocks` counts; None: timm does not know those of the model."""
    try:
        return count_blocks(model)
    except REFUSALS:
        return None


def _cost(model: nn.Module, size: int) -> dict[str, int | None]:
    """Count what an image costs; None: the network cannot be counted."""
    try:
        return image_cost(model, size)._asdict()
    except REFUSALS:
        return dict.fromkeys(ImageCost._fields)


def _normalizations(name: str) -> list[dict[str, Any]]:
    """List the distinct means and standard deviations of a model's published weights."""
    tags: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
    # The default weights are found by the name without a tag.
    for full in (name, *timm.list_models(f"{name}.*", pretrained=True)):
        published = timm.get_pretrained_cfg(full)
        if published is not None and published.has_weights:
            known = tags.setdefault((tuple(published.mean), tuple(published.std)), [])
            known += [published.tag] if published.tag not in known else []
    return [{"mean": mean, "std": std, "weights": known} for (mean, std), known in tags.items()]


def build_catalog() -> dict[str, dict[str, Any]]:
    """Describe every model of the installed timm that gives features, by name."""
    described = {
        name: describe(name, module)
        for module in sorted(timm.list_modules())
        for name in sorted(timm.list_models(module=module))
    }
    return {name: facts for name, facts in described.items() if facts is not None}


def format_table(catalog: dict[str, dict[str, Any]]) -> str:
    """Format the catalog as JSON, one line for each model, without repeating names and normalizations."""
    columns = list(next(iter(catalog.values())))
    known: list[dict[str, Any]] = []

    def number_of(normalization: dict[str, Any]) -> list[Any]:
        values = {key: normalization[key] for key in ("mean", "std")}
        if values not in known:
            known.append(values)
        return [known.index(values), normalization["weights"]]

    rows = {
        name: list(
            (facts | {"normalizations": [*map(number_of, facts["normalizations"])]}).values()
        )
        for name, facts in sorted(catalog.items())
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    normalizations = ",\n".join(f"  {json.dumps(values)}" for values in known)
    return (
        f'{{"columns": {json.dumps(columns)},\n"normalizations": [\n{normalizations}\n],\n'
        f'"backbones": {{\n{lines}\n}}}}\n'
    )


if __name__ == "__main__":
    # Found without importing `dasl_core.spec`, which could not read a file that lacks a new field.
    target = Path(__file__).parents[1] / "spec" / "backbones.json"
    target.write_text(format_table(build_catalog()), encoding="utf-8")
