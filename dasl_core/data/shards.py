"""Coded canvases of a data set in shards, built once and read at random.

A shard is a file in this machine's cache, in a store that nodes share, or both. Shards never change the values of
canvases: an image whose shard is missing or damaged is drawn and coded again, with the same values.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.cache import CacheFolder
from dasl_core.data.coding import Coding
from dasl_core.data.drawing import Drawer
from dasl_core.data.shard_file import Read, Shard, opened, read_shard, reasons_by_position
from dasl_core.data.shard_store import MANIFEST, ShardStore
from dasl_core.data.unused import MARK_SECONDS, mark_used

logger = logging.getLogger(__name__)

SHARD_BYTES = 256 << 20
# Increased together with the version of `canvas_file`.
_FORMAT = 1
_SHARD_NAME = re.compile(r"(\d+)\.shard")
# Pause after a failed request to the store; images are decoded in the meantime.
_PAUSE_SECONDS = 60.0
# Number of cached ends of remote shards; 16 bytes for each image.
_ENDS_KEPT = 1024


class Shards:
    """The available shards of an index; the images of each are a function of the index and the coding.

    Attributes:
        images: number of images of the index.
        count: number of shards.
        digest: digest of everything that determines the content.
        local: the shards in this machine's cache, by number.
        remote: sizes of the shards in the store, by number.
        store_has_manifest: whether the store has the manifest; true without a store.
    """

    def __init__(
        self,
        folder: CacheFolder,
        drawer: Drawer,
        coding: Coding,
        find_store: Callable[[str], ShardStore | None],
    ) -> None:
        """Describe the shards without reading them; `find_store` returns the shared store of a digest, or None."""
        self.folder, self.coding = folder, coding
        self.images, self._bands = drawer.shape[:2]
        self._valid_hw = drawer.valid_hw
        self._value_bytes = drawer.dtype.itemsize * coding.ratio
        mean = self._estimate(slice(None)) / self.images
        self._per_shard = min(self.images, max(1, int(SHARD_BYTES / mean)))
        self.count = -(-self.images // self._per_shard)
        self.digest = drawer.digest(_FORMAT, coding.name, self._per_shard)
        self.store = find_store(self.digest)
        self.local: dict[int, Shard] = {}
        self.remote: dict[int, int] = {}
        self.store_has_manifest = True
        self._away_until, self._marked_at = 0.0, 0.0
        self._remote_shard = lru_cache(_ENDS_KEPT)(self._open_remote)

    def positions(self, number: int) -> range:
        """Return the positions in the index of a shard's images."""
        begin = number * self._per_shard
        return range(begin, min(self.images, begin + self._per_shard))

    def estimate(self, number: int) -> int:
        """Estimate the size of a shard."""
        images = self.positions(number)
        return int(self._estimate(slice(images.start, images.stop)))

    def _estimate(self, images: slice) -> float:
        pixels = float(self._valid_hw[images].prod(axis=1).sum())
        return pixels * self._bands * self._value_bytes

    @property
    def is_built(self) -> bool:
        """Whether all shards were gathered on this machine."""
        return self.other_file("manifest").exists()

    @property
    def size(self) -> int:
        """Bytes of the shards in this machine's cache."""
        return sum(shard.size for shard in self.local.values())

    @property
    def num_local_images(self) -> int:
        """Number of images whose shards are in this machine's cache."""
        return sum(shard.images for shard in self.local.values())

    @property
    def num_images(self) -> int:
        """Number of images whose shards are in the cache or in the store."""
        return sum(len(self.positions(number)) for number in {*self.local, *self.remote})

    def has(self, position: int) -> bool:
        """Whether the shard of an image is in this machine's cache."""
        return position // self._per_shard in self.local

    def serves(self, position: int) -> bool:
        """Whether the shard of an image is in this machine's cache or in the store."""
        number = position // self._per_shard
        return number in self.local or number in self.remote

    def read(self, position: int) -> np.ndarray | None:
        """Return the pixels (C, H, W) of an image; None if it must be drawn."""
        number, at = divmod(position, self._per_shard)
        record = self._record(number, at)
        if record is None:
            return None
        height, width = map(int, self._valid_hw[position])
        return self.coding.decode(record, (self._bands, height, width))

    def file(self, number: int, suffix: str = "shard") -> Path:
        """Return the path of a shard in the cache."""
        return self.folder.path / f"canvases-{self.digest}-{number:05}.{suffix}"

    def other_file(self, suffix: str) -> Path:
        """Return the path of a file about all shards."""
        return self.folder.path / f"canvases-{self.digest}.{suffix}"

    @staticmethod
    def name(number: int) -> str:
        """Return the name of a shard in the store."""
        return f"{number:05}.shard"

    def find_local(self, number: int, known: Shard | None) -> Shard | None:
        """Find a complete shard in the cache, by its size in the manifest or else by its end."""
        file = self.file(number)
        try:
            size = file.stat().st_size
            if known is None:
                with opened(file) as read:
                    known = read_shard(read, size, len(self.positions(number)))
            elif known.size != size:
                raise ValueError("its size differs from the manifest's")
        except FileNotFoundError:
            return None
        except ValueError as error:
            logger.warning("%s is fetched or built again: %s", file, error)
            return None
        self.local[number] = known
        return known

    def read_remote(self, number: int) -> Shard | None:
        """Read the end of a shard in the store; None if it is damaged or cannot be read."""
        try:
            return self._remote_shard(number)[0]
        except (OSError, ValueError) as error:
            logger.warning("shard %d of the store is built again: %s", number, error)
            self.remote.pop(number)
            return None

    def open_store(self) -> None:
        """Mark the shards in the store as used, remove partial files of killed writers, and list the store."""
        if self.store is not None:
            with self.store_errors():
                mark_used(self.store)
                self._marked_at = time.monotonic()
                self.store.remove_abandoned()
            self.list_store()

    def list_store(self) -> None:
        if self.store is not None:
            with self.store_errors():
                sizes = self.store.sizes()
                self.store_has_manifest = sizes.pop(MANIFEST, None) is not None
                shards = ((_SHARD_NAME.fullmatch(name), size) for name, size in sizes.items())
                self.remote = {int(name[1]): size for name, size in shards if name is not None}

    def remove_partial(self) -> None:
        """Remove partial shards of a killed process."""
        for partial_file in self.folder.path.glob(f"canvases-{self.digest}-*.partial"):
            partial_file.unlink(missing_ok=True)

    def drop(self, number: int) -> None:
        """Remove a shard from the cache."""
        self.local.pop(number, None)
        self.file(number).unlink(missing_ok=True)

    @contextmanager
    def store_errors(self) -> Iterator[None]:
        """Context manager for a use of the store; if that fails, everything continues without the store."""
        try:
            yield
        except OSError as error:
            self.disable_store(error)

    def disable_store(self, error: Exception) -> None:
        """Continue without the store."""
        logger.warning("shards are not shared with other nodes: %s", error)
        self.store, self.remote, self.store_has_manifest = None, {}, True

    def read_manifest(self) -> dict[int, Shard] | None:
        """Read the manifest from the cache or the store; None if there is none."""
        try:
            return _decode_manifest(self.other_file("manifest").read_bytes(), self.count)
        except (OSError, ValueError):
            pass  # not gathered yet, or damaged
        if self.store is None:
            return None
        with self.store_errors():
            try:
                if (size := self.store.sizes().get(MANIFEST)) is not None:
                    return _decode_manifest(self.store.read(MANIFEST, 0, size), self.count)
            except ValueError as error:
                logger.warning("the manifest of the shared shards is written again: %s", error)
        return None

    def write_manifest(self, known: Mapping[int, Shard]) -> None:
        """Write the manifest after all shards, so that none is opened to describe it; an OSError if that fails."""
        content = json.dumps([known[number] for number in range(len(known))]).encode()
        if self.store is not None:
            with self.store_errors():
                self.store.write(MANIFEST, content)
        write_atomically(self.other_file("manifest"), content)

    def _record(self, number: int, at: int) -> bytes | None:
        """Read a record from the cache or the store; None if it is in neither, or damaged."""
        if (local := self.local.get(number)) is not None:  # another thread may drop it
            try:
                with opened(self.file(number)) as read:
                    return local.record(at, read)
            except ValueError as error:
                logger.warning("%s is removed: %s", self.file(number), error)
                self.drop(number)
            except OSError as error:  # removed by another rank, or a failing disk
                logger.warning("%s is no longer used: %s", self.file(number), error)
                self.local.pop(number, None)
        if number in self.remote and time.monotonic() >= self._away_until:
            try:
                self._mark_again()
                shard, read = self._remote_shard(number)
                return shard.record(at, read)
            except ValueError as error:
                logger.warning("shard %d of the store is no longer used: %s", number, error)
                self.remote.pop(number, None)
            except FileNotFoundError:
                logger.warning("shard %d was removed from the store", number)
                self.remote.pop(number, None)
            except OSError as error:
                if self._away_until == 0:  # an outage must not fill the log
                    logger.warning("shard %d of the store cannot be read: %s", number, error)
                # Otherwise each image would wait for the store's timeout.
                self._away_until = time.monotonic() + _PAUSE_SECONDS
        return None

    def _mark_again(self) -> None:
        """Periodically mark the shards in the store as used."""
        if self.store is not None and time.monotonic() - self._marked_at >= MARK_SECONDS:
            self._marked_at = time.monotonic()  # first, since other threads read too
            mark_used(self.store)

    def _open_remote(self, number: int) -> tuple[Shard, Read]:
        """Read and keep the end of a remote shard, so that each image takes one request."""
        assert self.store is not None, "the shard is in it"
        fetch = partial(self.store.read, self.name(number))
        shard = read_shard(fetch, self.remote[number], len(self.positions(number)))
        end = fetch(shard.begin, shard.size - shard.begin)

        def read(begin: int, length: int) -> bytes:
            if begin < shard.begin:
                return fetch(begin, length)
            return end[begin - shard.begin :][:length]

        return shard, read


def _decode_manifest(content: bytes, count: int) -> dict[int, Shard]:
    """Read a manifest of `count` shards; a ValueError if it is damaged."""
    try:
        shards = {
            number: Shard(int(images), reasons_by_position(reasons), int(begin), int(size))
            for number, (images, reasons, begin, size) in enumerate(json.loads(content))
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"it is another file: {error}") from error
    if len(shards) != count:
        raise ValueError(f"it has {len(shards)} shards, not {count}")
    return shards
