"""Drawing of images as canvases: decoded, scaled down, and placed into the upper left of a square."""

import hashlib
from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from dasl_core.data.bounded_map import map_waiting
from dasl_core.data.decode import Header, decoding_memory
from dasl_core.data.decode.reasons import CHANGED, EMPTY, MISSING, UNREADABLE
from dasl_core.data.file_digests import FileDigests
from dasl_core.data.index import LENGTH, DatasetIndex
from dasl_core.data.sources.folder import FolderSource, ListSource
from dasl_core.data.strings import Strings
from dasl_core.machine import usable_cores


class Drawer:
    """Draws the images of an index as canvases (C, S, S), of the type of its pixels.

    Attributes:
        valid_hw: (N, 2) int64, height and width of each image in its canvas.
        shape: shape (N, C, S, S) of all canvases.
        dtype: type of the canvases.
        canvas_bytes: size of a canvas.
        digests: get the SHA-256 of the file of each image that is drawn for the first time.
    """

    digests: FileDigests | None = None

    def __init__(self, index: DatasetIndex, image_size: int, channels: int) -> None:
        self.index = index
        self.dtype = np.dtype(index.pixels.dtype)
        side = min(2 * image_size, int(index.sizes.max()))
        self.shape = (len(index), channels, side, side)
        self.canvas_bytes = channels * side * side * self.dtype.itemsize
        # The longer side fits, and no image is scaled up. Sizes have the width first.
        scale = np.minimum(1.0, side / index.sizes.max(axis=1, keepdims=True))
        self.valid_hw: np.ndarray = np.maximum(1, np.round(index.sizes[:, ::-1] * scale)).astype(
            np.int64
        )

    def draw_valid(self, position: int) -> np.ndarray | str:
        """Decode an image to (C, H, W) without padding; return the reason if it cannot be read."""
        height, width = map(int, self.valid_hw[position])
        on_digest = None
        if self.digests is not None and not self.digests.has(position):
            on_digest = self.digests.put
        try:
            pixels = self.index.decode(
                position, self.shape[1], at_least=(height, width), on_digest=on_digest
            )
        except ValueError as error:
            return str(error)
        if pixels.shape[:2] != (height, width):
            return _reduce(pixels, height, width)
        return pixels.transpose(2, 0, 1)

    def place(self, pixels: np.ndarray | str) -> np.ndarray:
        """Place the pixels (C, H, W) of an image into its canvas; it is black if there is a reason in their place."""
        canvas = np.zeros(self.shape[1:], self.dtype)
        if not isinstance(pixels, str):
            _, height, width = pixels.shape
            canvas[:, :height, :width] = pixels
        return canvas

    def memory(self, position: int) -> int:
        """Estimate the memory in bytes to draw an image."""
        width, height = map(int, self.index.sizes[position])
        pixels = self.index.pixels
        header = Header(width, height, pixels.bands, pixels.dtype)
        return decoding_memory(header) + self.canvas_bytes

    def digest(self, *settings: object) -> str:
        """Compute a digest of everything that determines the canvases, and of a file's settings."""
        index = self.index
        content = hashlib.blake2b(digest_size=16)
        settings = (*settings, index.location, index.source.choice, self.shape, self.dtype.str)
        content.update(repr(settings).encode())
        paths = Strings.pack(index.paths)
        for array in (paths.data, paths.ends, index.sizes, index.locations):
            content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()

    def missing(self, on_looked: Callable[[], None] = lambda: None) -> dict[int, str]:
        """Find images whose files are missing or changed in length since ingest, without decoding.

        Applies only where each image is a file. `on_looked` is called after each image; an exception stops the search.
        """
        if (
            not self.index.source.source_class.each_image_is_a_file
            or "://" in self.index.source.root
        ):
            return {}
        absent = {}
        with closing(map_waiting(usable_cores(), self._absence, range(len(self.index)))) as reasons:
            for position, why in enumerate(reasons):
                on_looked()
                if why is not None:
                    absent[position] = why
        return absent

    def _absence(self, position: int) -> str | None:
        source = self.index.opened_source
        assert isinstance(source, FolderSource | ListSource), "each image is a file"
        try:
            size = source.storage.info(self.index.paths[position]).size
            length = int(self.index.locations[position, LENGTH])
            if length >= 0 and size != length:
                return CHANGED
            return None if size else EMPTY
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            return f"{UNREADABLE}: {error.strerror}"
        except ValueError as error:
            return str(error)


def _reduce(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale pixels (H, W, C) down to (C, height, width), as Pillow's bilinear filter does."""
    channels = pixels.shape[2]
    if pixels.dtype == np.uint8 and channels in (1, 3):
        planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        # Half of Pillow's time, within one level of its result, and single-threaded.
        resized = F.interpolate(planes, (height, width), mode="bilinear", antialias=True)
        return resized[0].contiguous().numpy()
    bands = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(pixels[:, :, band], np.float32)).resize(
                (width, height), Image.Resampling.BILINEAR, reducing_gap=3.0
            )
        )
        for band in range(channels)
    ]
    reduced = np.stack(bands)
    if pixels.dtype.kind == "f":
        return reduced
    # The filter's weights are positive, so results stay in range and only need rounding.
    rounded: np.ndarray = np.rint(reduced).astype(pixels.dtype)
    return rounded
