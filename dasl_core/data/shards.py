"""The coded canvases of a data set in shards of equal numbers of images, built once and read at random.

A shard is a file of this machine's cache, or of a store that nodes share, or of both. Shards decide
where a canvas is read and never what it is: an image whose shard is nowhere, or is damaged, is drawn and
coded again, with the same values.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.cache import CacheFolder
from dasl_core.data.canvas_file import digest_of
from dasl_core.data.coding import Coding
from dasl_core.data.drawing import Drawer
from dasl_core.data.shard_file import Read, Shard, opened, read_shard
from dasl_core.data.shard_store import ShardStore

logger = logging.getLogger(__name__)

SHARD_BYTES = 256 << 20
_FORMAT = 2
_MANIFEST = "manifest.json"
_SHARD_NAME = re.compile(r"(\d+)\.shard")
# A store that does not answer is left alone for so long; its images are decoded meanwhile.
_PAUSE_SECONDS = 60.0
# Of shards that are read from the store: 16 bytes for each image.
_ENDS_KEPT = 1024
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Facts(NamedTuple):
    """What the manifest says of a shard: its size, and why images have no record, by position in the shard."""

    size: int
    reasons: dict[int, str]

    @classmethod
    def of(cls, shard: Shard) -> Facts:
        """Describe a shard."""
        return cls(shard.size, shard.reasons)


class ShardLayout:
    """Which images are in which shard, and the names of the files: a function of the index and the coding.

    Attributes:
        count: number of shards.
        digest: of everything that determines the content.
    """

    def __init__(self, drawer: Drawer, coding: Coding) -> None:
        self.images, self.channels = drawer.shape[:2]
        self._valid_hw = drawer.valid_hw
        self._value = drawer.dtype.itemsize * coding.ratio
        mean = self._bytes(slice(None)) / self.images
        self.per_shard = min(self.images, max(1, int(SHARD_BYTES / mean)))
        self.count = -(-self.images // self.per_shard)
        self.digest = digest_of(drawer, _FORMAT, coding.name, self.per_shard)

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


class Shards:
    """The shards of an index that are at hand, and their reading.

    Attributes:
        here: sizes of the shards in the cache of this machine, by number.
        there: sizes of those in the store.
        manifest_is_there: whether the store lacks no manifest; true without a store.
    """

    def __init__(
        self,
        folder: CacheFolder,
        drawer: Drawer,
        coding: Coding,
        store_of: Callable[[str], ShardStore | None],
    ) -> None:
        """Describe them. Nothing is read yet.

        Args:
            store_of: returns the store that nodes share for a set of shards with this digest, or None.
        """
        self.folder, self.coding = folder, coding
        self.layout = ShardLayout(drawer, coding)
        self.store = store_of(self.layout.digest)
        self.here: dict[int, int] = {}
        self.there: dict[int, int] = {}
        self.manifest_is_there = True
        self._valid_hw, self._bands = drawer.valid_hw, drawer.shape[1]
        self._known_here: dict[int, Shard] = {}
        self._away_until = 0.0
        self._opened_there = lru_cache(_ENDS_KEPT)(self._open_there)

    @property
    def are_built(self) -> bool:
        """Whether all of them were gathered on this machine."""
        return self.other_file("manifest").exists()

    @property
    def size(self) -> int:
        """Bytes of the shards in the cache of this machine."""
        return sum(self.here.values())

    @property
    def images_here(self) -> int:
        """Number of images whose shards are in the cache of this machine."""
        return sum(len(self.layout.positions(number)) for number in self.here)

    def has(self, position: int) -> bool:
        """Whether the shard of an image is in the cache of this machine."""
        return position // self.layout.per_shard in self.here

    def read(self, position: int) -> np.ndarray | None:
        """Return the pixels (C, H, W) of an image; None if they have to be drawn."""
        number, at = divmod(position, self.layout.per_shard)
        record = self._record(number, at)
        if record is None:
            return None
        height, width = map(int, self._valid_hw[position])
        return self.coding.decode(record, (self._bands, height, width))

    def file(self, number: int, suffix: str = "shard") -> Path:
        """Return the path of a shard in the cache."""
        return self.folder.path / f"canvases-{self.layout.digest}-{number:05}.{suffix}"

    def other_file(self, suffix: str) -> Path:
        """Return the path of a file that is about all shards."""
        return self.folder.path / f"canvases-{self.layout.digest}.{suffix}"

    @staticmethod
    def name(number: int) -> str:
        """Return the name of a shard in the store."""
        return f"{number:05}.shard"

    def find_here(self, number: int, known: Facts | None) -> Facts | None:
        """Look for a whole shard in the cache, by its size or, if that is not known, by its end."""
        file = self.file(number)
        try:
            size = file.stat().st_size
            if known is None:
                with opened(file) as read:
                    known = Facts.of(read_shard(read, size, len(self.layout.positions(number))))
            elif known.size != size:
                raise ValueError("it has not the size that it should have")
        except FileNotFoundError:
            return None
        except ValueError as error:
            logger.warning("%s is fetched or built again: %s", file, error)
            return None
        self.here[number] = size
        return known

    def facts_there(self, number: int) -> Facts:
        """Read what a shard of the store says of itself.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        return Facts.of(self._opened_there(number)[0])

    def look_into_store(self) -> None:
        """List the shards in the store.

        Raises:
            OSError: the store does not answer.
        """
        if self.store is not None:
            sizes = self.store.sizes()
            self.manifest_is_there = sizes.pop(_MANIFEST, None) is not None
            shards = ((_SHARD_NAME.fullmatch(name), size) for name, size in sizes.items())
            self.there = {int(name[1]): size for name, size in shards if name is not None}

    def remove_partial(self) -> None:
        """Remove what a process has left that was killed while it gathered shards."""
        for partial_file in self.folder.path.glob(f"canvases-{self.layout.digest}-*.partial"):
            partial_file.unlink(missing_ok=True)

    def drop(self, number: int) -> None:
        """Remove a shard from the cache."""
        self.here.pop(number, None)
        self._known_here.pop(number, None)
        self.file(number).unlink(missing_ok=True)

    def leave_store(self, error: Exception) -> None:
        """Continue without the store."""
        logger.warning("shards are not shared with other nodes: %s", error)
        self.store, self.there, self.manifest_is_there = None, {}, True

    def read_manifest(self) -> dict[int, Facts] | None:
        """Read what all shards are; None if that is not known yet."""
        try:
            return _facts(self.other_file("manifest").read_bytes(), self.layout.count)
        except (OSError, ValueError):
            pass  # not gathered yet, or damaged
        if self.store is None:
            return None
        try:
            if (size := self.store.sizes().get(_MANIFEST)) is not None:
                return _facts(self.store.read(_MANIFEST, 0, size), self.layout.count)
        except ValueError as error:
            logger.warning("the manifest of the shared shards is written again: %s", error)
        except OSError as error:
            self.leave_store(error)
        return None

    def write_manifest(self, known: Mapping[int, Facts]) -> None:
        """Write what all shards are: last, so where it is, no shard has to be looked into.

        Raises:
            OSError: it cannot be written.
        """
        content = json.dumps([known[number] for number in range(self.layout.count)]).encode()
        if self.store is not None:
            try:
                self.store.write(_MANIFEST, content)
            except OSError as error:
                self.leave_store(error)
        write_atomically(self.other_file("manifest"), content)

    def _record(self, number: int, at: int) -> bytes | None:
        """Read a record from the cache or the store; None if it is in neither, or damaged."""
        if (size := self.here.get(number)) is not None:  # another thread may drop it meanwhile
            try:
                with opened(self.file(number)) as read:
                    return self._shard_here(number, size, read).record(at, read)
            except ValueError as error:
                logger.warning("%s is removed: %s", self.file(number), error)
                self.drop(number)
            except OSError as error:  # another rank has removed it, or the disk fails
                logger.warning("%s is no longer used: %s", self.file(number), error)
                self.here.pop(number, None)
        if number in self.there and time.monotonic() >= self._away_until:
            try:
                shard, read = self._opened_there(number)
                return shard.record(at, read)
            except ValueError as error:
                logger.warning("shard %d of the store is no longer used: %s", number, error)
                self.there.pop(number, None)
            except OSError as error:
                if self._away_until == 0:  # else an outage would fill the log
                    logger.warning("shard %d of the store cannot be read: %s", number, error)
                # Each image would wait for the store's timeout.
                self._away_until = time.monotonic() + _PAUSE_SECONDS
        return None

    def _shard_here(self, number: int, size: int, read: Read) -> Shard:
        shard = self._known_here.get(number)
        if shard is None:
            shard = read_shard(read, size, len(self.layout.positions(number)))
            self._known_here[number] = shard
        return shard

    def _open_there(self, number: int) -> tuple[Shard, Read]:
        """Read the end of a shard of the store, and keep it: each further image takes one request."""
        assert self.store is not None, "the shard is in it"
        fetch = partial(self.store.read, self.name(number))
        shard = read_shard(fetch, self.there[number], len(self.layout.positions(number)))
        end = fetch(shard.begin, shard.size - shard.begin)

        def read(begin: int, length: int) -> bytes:
            if begin < shard.begin:
                return fetch(begin, length)
            return end[begin - shard.begin :][:length]

        return shard, read


def _facts(content: bytes, count: int) -> dict[int, Facts]:
    """Read a manifest.

    Raises:
        ValueError: it is damaged.
    """
    shards = json.loads(content)
    try:
        facts = {
            number: Facts(int(size), {int(at): str(why) for at, why in reasons.items()})
            for number, (size, reasons) in enumerate(shards)
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"it is another file: {error}") from error
    if len(facts) != count:
        raise ValueError(f"it has {len(facts)} shards, not {count}")
    return facts
