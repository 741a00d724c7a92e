"""Decoding of any depth to 8 bits."""

import numpy as np
from PIL import Image

from dasl_core.data.decode.pillow import as_array, exif_orientation, to_mode, upright


def eight_bit_pixels(image: Image.Image, channels: int) -> np.ndarray:
    """Convert a loaded image as `decode_image` does, to a uint8 array (height, width, channels)."""
    image = upright(image, exif_orientation(image))
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        eight = eight_bit_values(values)
        # A PNG of 16 bits may name one value that is transparent.
        if isinstance(clear := image.info.get("transparency"), int):
            eight[values == clear] = 255
        image = Image.fromarray(eight)
    return as_array(to_mode(image, "L" if channels == 1 else "RGB"))


def eight_bit_values(values: np.ndarray) -> np.ndarray:
    """Scale values of more than 8 bits by the full range: integers by that of 16 bits, floats by 0 to 1.

    Raises:
        ValueError: some are outside of the range.
    """
    if values.dtype == np.uint8:
        return values
    low, high = values.min(), values.max()
    kind, most = ("floating-point", 1) if values.dtype.kind == "f" else ("integer", 65535)
    if not 0 <= low <= high <= most:
        raise ValueError(
            f"the image has {kind} pixels, which must lie between 0 and {most}, not {low:g} to {high:g}: save it with 8 or "
            "16 bits"
        )
    rounded = values.astype(np.float32) * np.float32(255 / most) + np.float32(0.5)
    return rounded.astype(np.uint8)
