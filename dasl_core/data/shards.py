"""The coded canvases of a data set in shards of equal numbers of images, built once and read at random.

A shard is a file of this machine's cache, or of a store that nodes share, or of both. Shards decide
where a canvas is read and never what it is: an image whose shard is nowhere, or is damaged, is drawn and
coded again, with the same values.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.cache import CacheFolder
from dasl_core.data.coding import Coding
from dasl_core.data.drawing import Drawer
from dasl_core.data.shard_file import Read, Shard, opened, read_shard
from dasl_core.data.shard_layout import ShardLayout
from dasl_core.data.shard_manifest import MANIFEST, Facts, decode, encode
from dasl_core.data.shard_store import ShardStore
from dasl_core.data.unused import MARK_SECONDS, mark_used

logger = logging.getLogger(__name__)

_SHARD_NAME = re.compile(r"(\d+)\.shard")
# A store that does not answer is left alone for so long; its images are decoded meanwhile.
_PAUSE_SECONDS = 60.0
# Of shards that are read from the store: 16 bytes for each image.
_ENDS_KEPT = 1024


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
        self._away_until, self._marked_at = 0.0, 0.0
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

    @property
    def num_images(self) -> int:
        """Number of images whose shards are in the cache or in the store."""
        return sum(len(self.layout.positions(number)) for number in {*self.here, *self.there})

    @property
    def all_there(self) -> bool:
        """Whether the store has all of them."""
        return len(self.there) == self.layout.count

    def has(self, position: int) -> bool:
        """Whether the shard of an image is in the cache of this machine."""
        return position // self.layout.per_shard in self.here

    def serves(self, position: int) -> bool:
        """Whether the shard of an image is in the cache of this machine or in the store."""
        number = position // self.layout.per_shard
        return number in self.here or number in self.there

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

    def open_store(self) -> None:
        """Note in the store that the shards are in use, remove what killed writers left there, and list it.

        Raises:
            OSError: the store does not answer.
        """
        if self.store is not None:
            mark_used(self.store)
            self._marked_at = time.monotonic()
            self.store.remove_abandoned()
            self.look_into_store()

    def look_into_store(self) -> None:
        """List the shards in the store.

        Raises:
            OSError: the store does not answer.
        """
        if self.store is not None:
            sizes = self.store.sizes()
            self.manifest_is_there = sizes.pop(MANIFEST, None) is not None
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
            return decode(self.other_file("manifest").read_bytes(), self.layout.count)
        except (OSError, ValueError):
            pass  # not gathered yet, or damaged
        if self.store is None:
            return None
        try:
            if (size := self.store.sizes().get(MANIFEST)) is not None:
                return decode(self.store.read(MANIFEST, 0, size), self.layout.count)
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
        content = encode(known)
        if self.store is not None:
            try:
                self.store.write(MANIFEST, content)
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
                self._mark_again()
                shard, read = self._opened_there(number)
                return shard.record(at, read)
            except ValueError as error:
                logger.warning("shard %d of the store is no longer used: %s", number, error)
                self.there.pop(number, None)
            except FileNotFoundError:
                logger.warning("shard %d was removed from the store", number)
                self.there.pop(number, None)
            except OSError as error:
                if self._away_until == 0:  # else an outage would fill the log
                    logger.warning("shard %d of the store cannot be read: %s", number, error)
                # Each image would wait for the store's timeout.
                self._away_until = time.monotonic() + _PAUSE_SECONDS
        return None

    def _mark_again(self) -> None:
        """Note now and then that the shards of the store are still in use."""
        if self.store is not None and time.monotonic() - self._marked_at >= MARK_SECONDS:
            self._marked_at = time.monotonic()  # first: other threads read, too
            mark_used(self.store)

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
