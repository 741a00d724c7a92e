"""Gathering of a data set's shards, from the shared store or by building them."""

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
    """Fetches or builds shards for the cache, as space allows, and copies them to the store.

    One process of the machine does so, with all cores, while the others wait. A shard is renamed when it is
    complete, so after a kill at most one is built again. Nodes that share a store process the shards in random
    order and check the store before each, without a lock: if two build the same shard, the content is equal.

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
            OSError: the cache cannot be written for a reason other than a full disk.
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
            facts = self._shards.find_local(number, known.get(number))
            if facts is None:
                if number not in self._shards.remote:
                    self._on_store(self._shards.list_store)  # another node may have built it
                facts = self._fetch(number, known.get(number), done) or self._build(number, done)
            elif number not in self._shards.remote:  # built without a store, or lost from it
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
        is_written = known == before and self._shards.store_has_manifest
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
            self._shards.disable_store(error)

    def _fetch(self, number: int, known: Facts | None, done: int) -> Facts | None:
        """Copy a shard from the store as space allows; None if it is missing or damaged there."""
        store, size = self._shards.store, self._shards.remote.get(number)
        if store is None or size is None:
            return None
        partial = self._shards.file(number, "partial")
        try:
            if not self._reserve(partial, size):
                return known or self._read_remote_facts(number)
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
            self._shards.remote.pop(number)
            return None
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._shards.disable_store(error)
                return None
            self.no_room = unwritable(self._shards.folder.path, error)
            return known or self._read_remote_facts(number)
        finally:
            partial.unlink(missing_ok=True)
        return self._shards.find_local(number, None)

    def _read_remote_facts(self, number: int) -> Facts | None:
        try:
            return self._shards.read_remote_facts(number)
        except (OSError, ValueError) as error:
            logger.warning("shard %d of the store is built again: %s", number, error)
            self._shards.remote.pop(number)
            return None

    def _build(self, number: int, done: int) -> Facts | None:
        """Draw and encode the images of a shard; None if neither cache nor store has space for it."""
        store, file = self._shards.store, self._shards.file(number)
        partial = self._shards.file(number, "partial")
        has_room = self._reserve(partial, self._layout.estimate(number))
        if not has_room and store is None:
            return None
        try:
            # In a full cache, one shard at a time is kept until it is in the store.
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
        facts = self._shards.find_local(number, None)
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
            self._shards.remote[number] = self._shards.local[number]
        except OSError as error:
            self._shards.disable_store(error)

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

    def _records(self, positions: Sequence[int]) -> Generator[bytes | str, None, None]:
        """Yield the record of each image, or why it cannot be read; decodes in parallel."""
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
        """Retry images that failed for transient reasons.

        They have no record, so those that are readable now are drawn whenever they are needed.
        """
        listed = [position for position, why in self.unreadable.items() if is_transient(why)]
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
