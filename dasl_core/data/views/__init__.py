"""Random views, drawn for each image and rendered on the device.

The recipe is SimCLR's (Chen et al. 2020, appendix A). Color changes are linear in the pixels, so
brightness, contrast, saturation, hue and grayscale become one 3x3 matrix and one offset per image;
hue rotates the chroma plane of YIQ, as NVIDIA DALI does, where torchvision goes through HSV. They are
applied in that order (torchvision draws an order; all but hue and contrast's mean commute).

Crops are whole pixels of the canvas, resampled as Pillow's bilinear or bicubic filter and torchvision
with `antialias=True` do. An image pays only for the operations that it draws.
"""

from dasl_core.data.views.draw import Draws, draw, draw_view
from dasl_core.data.views.parameters import ViewParameters, central_view
from dasl_core.data.views.rendering import render, render_views

__all__ = [
    "Draws",
    "ViewParameters",
    "central_view",
    "draw",
    "draw_view",
    "render",
    "render_views",
]
