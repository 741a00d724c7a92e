"""Pictures of images with any number of channels."""

import math

import numpy as np
from PIL import Image
from torch import Tensor


def picture(image: Tensor) -> Image.Image:
    """Convert all channels to an image: gray and color unchanged, otherwise a grid of gray channels.

    Args:
        image: (C, H, W) uint8.
    """
    channels, height, width = image.shape
    if channels in (1, 3):
        return sketch(image)
    columns = math.ceil(math.sqrt(channels))
    grid = Image.new("L", (columns * width, math.ceil(channels / columns) * height))
    for number, channel in enumerate(image):
        row, column = divmod(number, columns)
        grid.paste(sketch(channel[None]), (column * width, row * height))
    return grid


def sketch(image: Tensor) -> Image.Image:
    """Convert to an image of the same size: the first three of more channels as colors, or the first of two.

    Args:
        image: (C, H, W) uint8.
    """
    pixels = image.numpy()
    if len(pixels) < 3:
        return Image.fromarray(np.ascontiguousarray(pixels[0]))
    return Image.fromarray(np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)))
