"""Gathering of a data set's shards, from the shared store or by building them."""

import logging
import os
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dasl_core.data.cache import NO_ROOM, unwritable
from dasl_core.data.cache_build import CacheBuild, OnRead
from dasl_core.data.drawing import Drawer
from dasl_core.data.shard_file import Shard, ShardWriter, check_shard, publish
from dasl_core.data.shard_store import copy_to
from dasl_core.data.shards import Shards

logger = logging.getLogger(__name__)

_PART = 8 << 20


class Gatherer(CacheBuild):
    """Fetches or builds shards for the cache, as space allows, and copies them to the store.

    A shard is renamed when it is complete, so after a kill at most one is built again. Nodes that share a store
    process the shards in random order and check the store before each, without a lock: if two build the same shard,
    the content is equal.

    Attributes:
        no_room: why the cache does not have all shards; None if it does.
    """

    def __init__(self, shards: Shards, drawer: Drawer, on_read: OnRead) -> None:
        super().__init__(drawer, shards.other_file("lock"), on_read)
        self._shards = shards
        self._known: dict[int, Shard] = {}
        self.no_room: str | None = None

    def _is_complete(self) -> bool:
        manifest = self._shards.read_manifest()
        self._known = manifest or {}
        return manifest is not None

    def _build(self) -> None:
        known, done = dict(self._known), 0
        self._shards.remove_partial()
        self._shards.open_store()
        for number in self._order():
            shard = self._shards.find_local(number, known.get(number))
            if shard is None:
                if number not in self._shards.remote:
                    self._shards.list_store()  # another node may have built it
                shard = self._fetch(number, known.get(number), done) or self._draw(number, done)
            elif number not in self._shards.remote:  # built without a store, or lost from it
                self._share(number)
            if shard is not None:
                known[number] = shard
            done += len(self._shards.positions(number))
            self._report(done)
        self.unreadable = {
            self._shards.positions(number)[at]: why
            for number, shard in sorted(known.items())
            for at, why in shard.reasons.items()
        }
        is_written = known == self._known and self._shards.store_has_manifest
        if len(known) == self._shards.count and not is_written:
            self._shards.write_manifest(known)

    def _order(self) -> Sequence[int]:
        numbers = list(range(self._shards.count))
        if self._shards.store is not None:
            random.SystemRandom().shuffle(numbers)
        return numbers

    def _fetch(self, number: int, known: Shard | None, done: int) -> Shard | None:
        """Copy a shard from the store as space allows; None if it is missing or damaged there."""
        store, size = self._shards.store, self._shards.remote.get(number)
        if store is None or size is None:
            return None
        partial = self._shards.file(number, "partial")
        try:
            if not self._reserve(partial, size):
                return known or self._shards.read_remote(number)
            with open(partial, "r+b", buffering=0) as target:
                copied = 0
                for length in copy_to(store, self._shards.name(number), size, target, _PART):
                    os.fsync(target.fileno())
                    copied += length
                    self._report(done + len(self._shards.positions(number)) * copied // size)
            check_shard(partial)
            publish(partial, self._shards.file(number))
        except ValueError as error:
            logger.warning("shard %d of the store is built again: %s", number, error)
            self._shards.remote.pop(number)
            return None
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._shards.disable_store(error)
                return None
            self.no_room = unwritable(self._shards.folder.path, error)
            return known or self._shards.read_remote(number)
        finally:
            partial.unlink(missing_ok=True)
        return self._shards.find_local(number, None)

    def _draw(self, number: int, done: int) -> Shard | None:
        """Draw and encode the images of a shard; None if neither cache nor store has space for it."""
        store, file = self._shards.store, self._shards.file(number)
        partial = self._shards.file(number, "partial")
        has_room = self._reserve(partial, self._shards.estimate(number))
        if not has_room and store is None:
            return None
        try:
            # In a full cache, one shard at a time is kept until it is in the store.
            with (
                open(partial, "r+b" if has_room else "wb", buffering=0) as opened,
                closing(self._records(self._shards.positions(number))) as records,
            ):
                writer = ShardWriter(opened)
                for read, record in enumerate(records, 1):
                    writer.append(record)
                    self._report(done + read)
                writer.finish()
            publish(partial, file)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.no_room = unwritable(self._shards.folder.path, error)
            return None
        finally:
            partial.unlink(missing_ok=True)
        shard = self._shards.find_local(number, None)
        self._share(number)
        if not has_room:
            self._shards.drop(number)
        return shard

    def _share(self, number: int) -> None:
        """Copy a shard of the cache to the store, if there is one."""
        if self._shards.store is None:
            return
        with self._shards.store_errors():
            self._shards.store.put(self._shards.name(number), self._shards.file(number))
            self._shards.remote[number] = self._shards.local[number].size

    def _reserve(self, partial: Path, size: int) -> bool:
        """Create a file of this size if there is space; after the first failure, return false."""
        if self.no_room is None:
            try:
                self._shards.folder.reserve(partial, size, existing=self._shards.size)
            except OSError as error:
                partial.unlink(missing_ok=True)
                if error.errno not in NO_ROOM:
                    raise
                self.no_room = error.strerror or str(error)
        return self.no_room is None

    def _record(self, position: int) -> bytes | str:
        pixels = self._drawer.draw_valid(position)
        return pixels if isinstance(pixels, str) else self._shards.coding.encode(pixels)
