"""Layout of shards: their images, sizes and names."""

from __future__ import annotations

from dasl_core.data.coding import Coding
from dasl_core.data.drawing import Drawer

SHARD_BYTES = 256 << 20
# Increased together with the version of `canvas_file`.
_FORMAT = 1


class ShardLayout:
    """Images and file names of each shard, as a function of the index and the coding.

    Attributes:
        count: number of shards.
        digest: digest of everything that determines the content.
    """

    def __init__(self, drawer: Drawer, coding: Coding) -> None:
        self.images, self.channels = drawer.shape[:2]
        self._valid_hw = drawer.valid_hw
        self._value = drawer.dtype.itemsize * coding.ratio
        mean = self._bytes(slice(None)) / self.images
        self.per_shard = min(self.images, max(1, int(SHARD_BYTES / mean)))
        self.count = -(-self.images // self.per_shard)
        self.digest = drawer.digest(_FORMAT, coding.name, self.per_shard)

    def positions(self, number: int) -> range:
        """Return the positions in the index of a shard's images."""
        begin = number * self.per_shard
        return range(begin, min(self.images, begin + self.per_shard))

    def estimate(self, number: int) -> int:
        """Estimate the size of a shard."""
        images = self.positions(number)
        return int(self._bytes(slice(images.start, images.stop)))

    def _bytes(self, images: slice) -> float:
        return float(self._valid_hw[images].prod(axis=1).sum()) * self.channels * self._value
