"""Drawing of images as canvases: decoded, scaled down, and placed into the upper left of a square."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
from PIL import Image

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.decode import BYTES_PER_PIXEL
from dasl_core.data.index import DatasetIndex
from dasl_core.machine import usable_cores


class Drawer:
    """Draws the images of an index as canvases (C, S, S) uint8.

    Attributes:
        valid_hw: (N, 2) int64, height and width of each image within its canvas.
        shape: (N, C, S, S) of all canvases.
    """

    def __init__(self, index: DatasetIndex, image_size: int, channels: int) -> None:
        self.index = index
        side = min(2 * image_size, int(index.sizes.max()))
        self.shape = (len(index), channels, side, side)
        # The longer side fits, and no image is scaled up. Sizes have the width first.
        scale = np.minimum(1.0, side / index.sizes.max(axis=1, keepdims=True))
        self.valid_hw: np.ndarray = np.maximum(1, np.round(index.sizes[:, ::-1] * scale)).astype(
            np.int64
        )

    def draw(self, position: int) -> np.ndarray | str:
        """Decode an image to its canvas; return the reason if it cannot be read."""
        height, width = self.valid_hw[position]
        channels = self.shape[1]
        try:
            pixels = self.index.decode(position, channels)
        except ValueError as error:
            return str(error)
        if pixels.shape[:2] != (height, width):
            image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
            resized = image.resize(
                (int(width), int(height)), Image.Resampling.BOX, reducing_gap=3.0
            )
            pixels = np.asarray(resized).reshape(height, width, channels)
        canvas = self.black()
        canvas[:, :height, :width] = pixels.transpose(2, 0, 1)
        return canvas

    def black(self) -> np.ndarray:
        """Return the canvas of an image that cannot be read."""
        return np.zeros(self.shape[1:], dtype=np.uint8)

    def memory(self, position: int) -> int:
        """Estimate the bytes of memory that drawing an image takes."""
        width, height = map(int, self.index.sizes[position])
        return width * height * BYTES_PER_PIXEL + int(np.prod(self.shape[1:]))

    def missing(self, on_looked: Callable[[], None] = lambda: None) -> dict[int, str]:
        """Find the images whose files are missing or empty, which is known without decoding.

        `on_looked` is called after each image; what it raises ends the search.
        """
        threads = usable_cores()
        with ThreadPoolExecutor(threads, thread_name_prefix="look") as pool:
            reasons = bounded_map(
                pool, self._absence, range(len(self.index)), AHEAD_PER_THREAD * threads
            )
            absent = {}
            with closing(reasons):
                for position, why in enumerate(reasons):
                    on_looked()
                    if why is not None:
                        absent[position] = why
            return absent

    def _absence(self, position: int) -> str | None:
        try:
            return None if self.index.path(position).stat().st_size else "the file is empty"
        except FileNotFoundError:
            return "the file does not exist"
        except OSError as error:
            return f"the file cannot be read: {error.strerror}"
        except ValueError as error:
            return str(error)
