"""Previews: the images of a data set as training would see them, before anything is trained."""

from dasl_core.previews.drawing import MOST_IMAGES, Preview, draw
from dasl_core.previews.files import SETTINGS, SHEET, write

__all__ = ["MOST_IMAGES", "SETTINGS", "SHEET", "Preview", "draw", "write"]
