"""The parameters of one view of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dasl_core.spec.fields import Interpolation


@dataclass(frozen=True)
class ViewParameters:
    """The parameters of one view of B images, or of V * B, one view after the other, on the CPU. Numbers are float32.

    An operation that no image draws is None.

    Attributes:
        box: (B, 4), x, y, width, height of the crop as shares of the image; the width is negative for a view
            that is flipped horizontally, x then being the right edge, and so is the height vertically.
        color: (B, 3, 3), multiplies an RGB pixel.
        contrast: (B,), 1 for none; the change is around the image's mean luminance, or without color the band's.
        sigma: (B,), blur in pixels of the view; 0 is none.
        solarized: (B,) bool, whether pixels above one half are inverted.
        interpolation: filter of the crop.
        transposed: (B,) bool, whether rows and columns are exchanged, after the flips.
        dropped: (B,) int64, the band that becomes the mean that the network expects; -1 is none.
        whole_pixels: the edges of all boxes lie between pixels, and what lies outside of a box has no
            influence on its border.
    """

    box: Tensor
    color: Tensor
    contrast: Tensor
    sigma: Tensor | None = None
    solarized: Tensor | None = None
    interpolation: Interpolation = "bilinear"
    transposed: Tensor | None = None
    dropped: Tensor | None = None
    whole_pixels: bool = False

    def rows(self, indices: slice | Tensor) -> "ViewParameters":
        """Return the parameters of some of the images."""
        changed: dict[str, Any] = {
            name: value[indices] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)

    @classmethod
    def joined(cls, parts: Sequence["ViewParameters"]) -> "ViewParameters":
        """Return the parameters of several views, one after the other; all have the same filter and whole pixels."""
        if len(parts) == 1:
            return parts[0]
        changed: dict[str, Any] = {}
        for name, nothing in _NOTHING.items():
            values = [getattr(part, name) for part in parts]
            if any(value is not None for value in values):
                changed[name] = torch.cat(
                    [
                        nothing.expand(len(part.box)) if value is None else value
                        for part, value in zip(parts, values, strict=True)
                    ]
                )
        for name in ("box", "color", "contrast"):
            changed[name] = torch.cat([getattr(part, name) for part in parts])
        return replace(parts[0], **changed)

    def recolored(self) -> Tensor:
        """(B,) bool, whether the colors of each image change."""
        changed = (self.color != torch.eye(3)).any(dim=(1, 2))
        return changed | (self.contrast != 1)


# The values of images that do not draw an operation.
_NOTHING = {
    "sigma": torch.zeros(1),
    "solarized": torch.zeros(1, dtype=torch.bool),
    "transposed": torch.zeros(1, dtype=torch.bool),
    "dropped": torch.full((1,), -1),
}


def central_view(valid_hw: Tensor, crop_pct: float = 1.0) -> ViewParameters:
    """Return the view for evaluation: the central square, `crop_pct` of the shorter side, of each unchanged image."""
    count = valid_hw.shape[0]
    side = crop_pct * valid_hw.min(dim=1, keepdim=True).values
    share = side / valid_hw  # (B, 2) of height and width
    height, width = share.unbind(1)
    box = torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)
    return ViewParameters(box, torch.eye(3).expand(count, 3, 3), torch.ones(count))
