"""Previews: the images of a data set as training would see them."""

from dasl_core.previews.drawing import MOST_IMAGES, Drawing
from dasl_core.previews.files import SETTINGS, SHEET, write

__all__ = ["MOST_IMAGES", "SETTINGS", "SHEET", "Drawing", "write"]
