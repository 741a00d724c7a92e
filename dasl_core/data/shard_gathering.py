"""Gathering of a data set's shards: fetched from the store that nodes share, or built."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.build_progress import BuildProgress
from dasl_core.data.cache import NO_ROOM, unwritable
from dasl_core.data.canvas_file import OnRead
from dasl_core.data.decode import is_transient
from dasl_core.data.drawing import Drawer
from dasl_core.data.shard_file import ShardWriter, check_shard, publish
from dasl_core.data.shard_manifest import Facts
from dasl_core.data.shard_store import copy_to
from dasl_core.data.shards import Shards
from dasl_core.data.unreadable import too_many
from dasl_core.locks import locked
from dasl_core.machine import decoding_budget, usable_cores

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_WAIT_SECONDS = 0.2
_PART = 8 << 20


class Gatherer:
    """Brings shards into the cache as far as there is room, and into the store, if there is one.

    One process of the machine does so, with all cores, while the others wait. A shard gets its
    name when it is whole, so after a kill at most one is built again. Nodes that share a store go
    through the shards in orders of their own and look there before each: they need no lock, and a shard
    that two of them build at once is the same.

    Attributes:
        unreadable: images that cannot be read, with the reasons.
        no_room: why the cache does not have all shards; None if it does.
    """

    def __init__(self, shards: Shards, drawer: Drawer, on_read: OnRead) -> None:
        self._shards, self._drawer, self._on_read = shards, drawer, on_read
        self._layout = shards.layout
        self._progress = BuildProgress(shards.other_file("progress"))
        self._pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")
        self._report_at = 0.0
        self.unreadable: dict[int, str] = {}
        self.no_room: str | None = None

    def gather(self) -> bool:
        """Gather the shards. Return false if too few images can be read.

        Raises:
            OSError: the cache cannot be written, for another reason than a lack of room.
        """
        with locked(self._shards.other_file("lock"), self._wait), self._pool:
            known = self._shards.read_manifest()
            if known is None:
                missing = self._drawer.missing(lambda: self._on_read(0))
                if too_many(len(missing), self._layout.images):
                    return False
            self._gather(dict(known or {}))
            self._retry()
        return True

    def _wait(self) -> None:
        self._on_read(self._progress.read())
        time.sleep(_WAIT_SECONDS)

    def _gather(self, known: dict[int, Facts]) -> None:
        before, done = dict(known), 0
        self._shards.remove_partial()
        self._on_store(self._shards.open_store)
        for number in self._order():
            facts = self._shards.find_here(number, known.get(number))
            if facts is None:
                if number not in self._shards.there:
                    self._on_store(self._shards.look_into_store)  # another node may have built it
                facts = self._fetch(number, known.get(number), done) or self._build(number, done)
            elif number not in self._shards.there:  # built before there was a store, or lost there
                self._share(number)
            if facts is not None:
                known[number] = facts
            done += len(self._layout.positions(number))
            self._report(done)
        self._progress.remove()
        self.unreadable = {
            self._layout.positions(number)[at]: why
            for number, facts in sorted(known.items())
            for at, why in facts.reasons.items()
        }
        is_written = known == before and self._shards.manifest_is_there
        if len(known) == self._layout.count and not is_written:
            self._shards.write_manifest(known)

    def _order(self) -> Sequence[int]:
        numbers = list(range(self._layout.count))
        if self._shards.store is not None:
            random.SystemRandom().shuffle(numbers)
        return numbers

    def _on_store(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self._shards.leave_store(error)

    def _fetch(self, number: int, known: Facts | None, done: int) -> Facts | None:
        """Copy a shard from the store if there is room; None if the store has none, or a damaged one."""
        store, size = self._shards.store, self._shards.there.get(number)
        if store is None or size is None:
            return None
        partial = self._shards.file(number, "partial")
        try:
            if not self._reserve(partial, size):
                return known or self._facts_there(number)
            with open(partial, "r+b", buffering=0) as target:
                copied = 0
                for length in copy_to(store, self._shards.name(number), size, target, _PART):
                    os.fsync(target.fileno())
                    copied += length
                    self._report(done + len(self._layout.positions(number)) * copied // size)
            check_shard(partial)
            publish(partial, self._shards.file(number))
        except ValueError as error:
            logger.warning("shard %d of the store is built again: %s", number, error)
            self._shards.there.pop(number)
            return None
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._shards.leave_store(error)
                return None
            self.no_room = unwritable(self._shards.folder.path, error)
            return known or self._facts_there(number)
        finally:
            partial.unlink(missing_ok=True)
        return self._shards.find_here(number, None)

    def _facts_there(self, number: int) -> Facts | None:
        try:
            return self._shards.facts_there(number)
        except (OSError, ValueError) as error:
            logger.warning("shard %d of the store is built again: %s", number, error)
            self._shards.there.pop(number)
            return None

    def _build(self, number: int, done: int) -> Facts | None:
        """Draw and code the images of a shard; None if there is room for it nowhere."""
        store, file = self._shards.store, self._shards.file(number)
        partial = self._shards.file(number, "partial")
        has_room = self._reserve(partial, self._layout.estimate(number))
        if not has_room and store is None:
            return None
        try:
            # Without room, one shard at a time is here until it is in the store.
            with (
                open(partial, "r+b" if has_room else "wb", buffering=0) as opened,
                closing(self._records(self._layout.positions(number))) as records,
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
        facts = self._shards.find_here(number, None)
        self._share(number)
        if not has_room:
            self._shards.drop(number)
        return facts

    def _share(self, number: int) -> None:
        """Copy a shard of the cache to the store, if there is one."""
        store = self._shards.store
        if store is None:
            return
        try:
            store.put(self._shards.name(number), self._shards.file(number))
            self._shards.there[number] = self._shards.here[number]
        except OSError as error:
            self._shards.leave_store(error)

    def _reserve(self, partial: Path, size: int) -> bool:
        """Create a file of this size if there is room; after the first refusal, there is none."""
        if self.no_room is None:
            try:
                self._shards.folder.reserve(partial, size, beside=self._shards.size)
            except OSError as error:
                partial.unlink(missing_ok=True)
                if error.errno not in NO_ROOM:
                    raise
                self.no_room = error.strerror or str(error)
        return self.no_room is None

    def _records(self, positions: Sequence[int]) -> Generator[bytes | str, None, None]:
        """Yield the record of each image, or why it cannot be read; several are decoded at once."""
        return bounded_map(
            self._pool,
            self._record,
            positions,
            AHEAD_PER_THREAD * usable_cores(),
            cost=self._drawer.memory,
            budget=decoding_budget(),
        )

    def _record(self, position: int) -> bytes | str:
        pixels = self._drawer.draw_valid(position)
        return pixels if isinstance(pixels, str) else self._shards.coding.encode(pixels)

    def _retry(self) -> None:
        """Read the images again that could not be read for other reasons than their content.

        They have no record, so those that can be read now are drawn whenever they are needed.
        """
        listed = [each for each, why in self.unreadable.items() if is_transient(why)]
        with closing(self._records(listed)) as records:
            for position, record in zip(listed, records, strict=True):
                if isinstance(record, str):
                    self.unreadable[position] = record
                else:
                    del self.unreadable[position]

    def _report(self, images: int) -> None:
        if time.monotonic() >= self._report_at:
            self._progress.write(images)
            self._on_read(images)
            self._report_at = time.monotonic() + _REPORT_SECONDS
