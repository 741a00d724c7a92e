"""Adapt the first convolution of weights for RGB to images with other bands."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

RGB = 3


def adapt_first_convolutions(
    weights: dict[str, Any],
    model: nn.Module,
    layers: Iterable[str],
    how: Literal["mean", "random"],
) -> dict[str, Any]:
    """Return the weights with their first convolutions adapted to the bands of `model`.

    Args:
        weights: by name.
        model: with random weights, of which the further bands of "random" are taken.
        layers: names of the convolutions of `model` that take the image.
        how: as in `adapt`.

    Raises:
        ValueError: a layer does not take the three bands of RGB.
    """
    adapted = dict(weights)
    for name in (f"{layer}.weight" for layer in layers):
        weight, fresh = weights.get(name), model.state_dict()[name]
        if weight is None or weight.shape == fresh.shape:
            continue
        if weight.ndim != 4 or weight.shape[1] != RGB:
            raise ValueError(
                f"its {name} has the shape {tuple(weight.shape)}, not that of a convolution of three bands; set "
                "backbone.extra_bands: repeat"
            )
        adapted[name] = adapt(weight.float(), fresh.float(), how)
    return adapted


def adapt(weight: Tensor, fresh: Tensor, how: Literal["mean", "random"]) -> Tensor:
    """Adapt a convolution for RGB to images with C bands.

    Args:
        weight: (O, 3, kH, kW).
        fresh: (O, C, kH, kW), random weights.
        how: "mean": each band gets the mean over R, G and B, times 3 / C. Equal bands then give the output
            that they give as RGB; timm scales repeated weights by the same factor. "random": bands from the
            fourth on get those of `fresh`, with the root mean square of `weight`. All are scaled by
            sqrt(3 / C), since products with random weights add up in variance: the output of independent
            bands keeps its variance.

    Returns:
        (O, C, kH, kW).
    """
    bands = fresh.shape[1]
    if how == "mean":
        return (weight.mean(dim=1, keepdim=True) * (RGB / bands)).repeat(1, bands, 1, 1)
    extra = fresh[:, RGB:]
    size = _root_mean_square(weight) / _root_mean_square(extra)
    adapted = torch.cat([weight[:, :bands], extra * size], dim=1)
    return adapted * math.sqrt(RGB / bands)


def _root_mean_square(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()
