"""`AttemptLog`: a bounded log in parts, whose positions stay valid when the middle is dropped."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from service.artifacts.attempt_log import AttemptLog, omission_line
from service.artifacts.storage import Storage
from service.object_store import StoreError
from tests.support.s3_server import S3Server

LIMIT = 16 * 64
"""Parts of 64 bytes."""


@pytest.fixture
def log(store_root: str) -> AttemptLog:
    """A log on a file system, and one in a store that cannot append."""
    return AttemptLog(Storage(store_root), "job_x", 1)


def lines(start: int, stop: int) -> bytes:
    """Return numbered lines of 10 bytes each."""
    return b"".join(b"line %04d\n" % number for number in range(start, stop))


def tail(log: AttemptLog, lines: int) -> tuple[bytes, int]:
    """Return the last lines of a log, and where they begin."""
    text, position = log.tail(lines)
    return b"".join(text), position


def test_short_log_reads_back_what_was_appended(log: AttemptLog) -> None:
    assert (log.parts(), log.end(), tail(log, 3), list(log.text())) == ([], 0, (b"", 0), [])
    log.append(0, b"one\ntwo\n", LIMIT)
    log.append(8, b"three", LIMIT)
    log.append(8, b"three\n", LIMIT)  # Repeats written bytes and adds some, as after a crash.
    assert b"".join(log.text()) == b"one\ntwo\nthree\n"
    assert tail(log, 2) == (b"two\nthree\n", 4)
    assert tail(log, 0) == (b"", 14)
    piece = log.read(5, 4)
    assert (piece.start, piece.data, piece.end) == (5, b"wo\nt", 14)


def test_removed_log_is_gone_with_what_a_killed_writer_left(store_root: str) -> None:
    log = AttemptLog(Storage(store_root), "job_x", 1)
    log.append(0, lines(0, 3), LIMIT)
    # It was killed after it had merged this object into the one above.
    log._fs.pipe_file(f"{log._first}.10-20", lines(1, 2))
    log.remove()
    assert (log.parts(), list(log.text())) == ([], [])


def test_interrupted_removal_of_another_log_is_repeated(
    log: AttemptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.begin("job_x-1-a")
    log.append(0, lines(0, 30), LIMIT)
    with monkeypatch.context() as patch:
        patch.setattr(log._fs, "rm_file", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.begin("job_x-1-b")
    assert not log.belongs_to("job_x-1-b")
    log.begin("job_x-1-b")
    assert log.belongs_to("job_x-1-b")
    assert log.parts() == []
    log.remove()
    assert log._entries() == []


def test_short_log_in_files_is_one_growing_file(tmp_path: Path) -> None:
    log = AttemptLog(Storage(f"file://{tmp_path}"), "job_x", 1)
    log.append(0, b"one\ntwo\n", LIMIT)
    log.append(8, b"three\n", LIMIT)
    assert [(part.start, part.end) for part in log.parts()] == [(0, 14)]
    assert log.parts()[0].path.endswith("/job_x/attempts/1/driver.log")


class CountedStore(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An object store that counts, and fails at a chosen change."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self) -> None:
        super().__init__()
        self.written = self.read = 0
        self.changes_left: int | None = None

    def _change(self) -> None:
        if self.changes_left == 0:
            raise ConnectionError("killed here")
        if self.changes_left is not None:
            self.changes_left -= 1

    def pipe_file(self, path: str, value: bytes, *arguments: Any, **named: Any) -> None:
        self._change()
        self.written += len(value)
        super().pipe_file(path, value, *arguments, **named)

    def rm_file(self, path: str) -> None:
        self._change()
        super().rm_file(path)

    def cat_file(self, *arguments: Any, **named: Any) -> bytes:
        content: bytes = super().cat_file(*arguments, **named)
        self.read += len(content)
        return content


@pytest.fixture
def counted() -> Iterator[CountedStore]:
    fsspec.register_implementation("counted", CountedStore, clobber=True)
    store: CountedStore = fsspec.filesystem("counted")
    store.written, store.read, store.changes_left = 0, 0, None
    yield store
    store.store.clear()


def test_log_in_an_object_store_is_not_rewritten_by_each_append(counted: CountedStore) -> None:
    log = AttemptLog(Storage("counted://root"), "job_x", 1)
    rounds, written = 1024, lines(0, 9999) + lines(0, 241)  # 1024 times ten lines
    limit = 16 * len(written)  # one part holds all
    most = 0
    for number in range(rounds):
        log.append(100 * number, written[100 * number : 100 * (number + 1)], limit)
        most = max(most, len(log.parts()))
    assert b"".join(log.text()) == written
    # log2(1024) = 10 doublings; rewriting everything each time would be 512 times the log.
    assert len(written) < counted.written <= 6.1 * len(written)
    assert 0 < counted.read <= (5.1 + 1) * len(written), "merging, and the text once"
    assert most <= 11


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=40), part_size=st.integers(16, 600))
def test_objects_of_a_log_stay_few_whatever_their_sizes(sizes: list[int], part_size: int) -> None:
    fsspec.register_implementation("counted", CountedStore, clobber=True)
    store = fsspec.filesystem("counted")
    store.store.clear()
    store.written, store.changes_left = 0, None
    log = AttemptLog(Storage("counted://sizes"), "job_x", 1)
    position = 0
    for size in sizes:
        log.append(position, b"x" * (size - 1) + b"\n", 1000 * part_size)
        position += size
    doublings = math.log2(1000 * part_size / 16) + 1
    assert store.written <= position * (1 + doublings)
    # An object is larger than all that follow, or does not fit into one part with them.
    parts = [part.end - part.start for part in log.parts()]
    suffixes = list(itertools.accumulate(reversed(parts)))[::-1]
    full = 1000 * part_size // 16
    assert all(
        size > rest or size + rest > full for size, rest in zip(parts, suffixes[1:], strict=False)
    )


def test_log_survives_a_kill_between_any_two_changes_of_the_store(counted: CountedStore) -> None:
    written = lines(0, 24)
    for kill_at in range(200):
        counted.store.clear()
        log = AttemptLog(Storage("counted://root"), "job_x", 1)
        counted.changes_left, position, killed = kill_at, 0, False
        while position < len(written):
            try:
                log.append(position, written[position : position + 10], 16 * len(written))
            except ConnectionError:
                killed, counted.changes_left = True, None
            end = log.end()
            assert end >= position, "nothing stored is lost"
            assert b"".join(log.text()) == written[:end]
            assert tail(log, 3)[0] == written[:end][-30:]
            position = end
        if not killed:
            assert kill_at > 24
            assert len(counted.ls(log._folder)) == len(log.parts())
            return
    raise AssertionError("the last round was not reached")


@pytest.mark.slow
def test_log_survives_a_restart_of_the_object_store(s3_server: S3Server, s3_root: str) -> None:
    log = AttemptLog(Storage(s3_root), "job_x", 1)
    written = lines(0, 60)
    restart = Thread(target=s3_server.start)
    for number in range(60):
        if number == 30:
            s3_server.kill()
            restart.start()
        try:
            log.append(log.end(), written[log.end() : 10 * (number + 1)], LIMIT)
        except StoreError:
            restart.join()  # The dispatcher tries again later.
    restart.join()
    log.append(log.end(), written[log.end() :], LIMIT)
    assert b"".join(log.text()) == written


def test_second_writer_of_a_log_loses_and_repeats_nothing(counted: CountedStore) -> None:
    """A dispatcher that lost its lease writes what the next one has stored in larger objects."""
    log = AttemptLog(Storage("counted://root"), "job_x", 1)
    late = AttemptLog(Storage("counted://root"), "job_x", 1)
    log.append(0, lines(0, 3), LIMIT)
    list_now = log._list()
    log.append(30, lines(3, 6), LIMIT)
    late._list = lambda: list_now  # type: ignore[method-assign]  # It listed before that.
    late._append_objects(list_now[0], 30, lines(3, 4), 64)
    assert b"".join(log.text()) == lines(0, 6)
    log.append(60, lines(6, 8), LIMIT)
    assert b"".join(log.text()) == lines(0, 8)


def test_long_log_keeps_head_and_tail(log: AttemptLog) -> None:
    written = lines(0, 1000)
    for start in range(0, len(written), 130):
        log.append(start, written[start : start + 130], LIMIT)
    parts = log.parts()
    assert sum(part.end - part.start for part in parts) <= LIMIT
    assert all(part.start % 10 == 0 for part in parts), "parts begin with a line"
    [gap] = [i for i in range(1, len(parts)) if parts[i].start > parts[i - 1].end]
    head, rest = parts[gap - 1].end, parts[gap].start
    assert head >= LIMIT // 2 - 2 * 64
    assert len(written) - rest >= LIMIT // 2 - 2 * 64
    kept = written[:head] + omission_line(rest - head) + written[rest:]
    assert b"".join(log.text()) == kept
    assert log.end() == len(written)

    assert tail(log, 3) == (lines(997, 1000), len(written) - 30)
    assert tail(log, 10_000) == (omission_line(rest - head) + written[rest:], rest)
    # A read inside the gap returns the bytes after it; positions do not shift.
    for position in (head, head + 1, rest - 1, rest):
        piece = log.read(position, 20)
        assert (piece.start, piece.data) == (rest, written[rest : rest + 20])
    assert log.read(head - 5, 20).data == written[head - 5 : head]


def test_append_beyond_the_end_leaves_a_gap(log: AttemptLog) -> None:
    log.append(0, lines(0, 3), LIMIT)
    log.append(500, lines(50, 52), LIMIT)
    assert b"".join(log.text()) == lines(0, 3) + omission_line(470) + lines(50, 52)


def test_line_longer_than_a_part_is_not_split(log: AttemptLog) -> None:
    long = b"x" * 100 + b"\n"
    log.append(0, b"short\n" + long + b"short\n", LIMIT)
    assert [(part.start, part.end) for part in log.parts()] == [(0, 6), (6, 107), (107, 113)]
    log.append(113, b"y" * 300, LIMIT)
    assert b"".join(log.text()) == b"short\n" + long + b"short\n" + b"y" * 300


def test_log_limit_holds_without_line_breaks(log: AttemptLog) -> None:
    for number in range(100):
        log.append(number * 50, b"." * 50, LIMIT)
    assert sum(part.end - part.start for part in log.parts()) <= LIMIT
    assert log.end() == 5000


class Counted(bytes):
    """Bytes that count how many bytes are copied and searched."""

    work = 0

    def __add__(self, other: Buffer) -> Counted:
        both = Counted(super().__add__(other))
        Counted.work += len(both)
        return both

    def count(self, *arguments: Any) -> int:
        Counted.work += len(self)
        return super().count(*arguments)


def test_log_tail_costs_linear_work(log: AttemptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    written = lines(0, 640)
    log.append(0, written, 16 * len(written))
    monkeypatch.setattr("service.artifacts.attempt_log._TAIL_BLOCK", 64)
    monkeypatch.setattr(Counted, "work", 0)
    read = log._bytes
    monkeypatch.setattr(log, "_bytes", lambda *where: Counted(read(*where)))
    assert tail(log, 1000) == (written, 0)
    assert 0 < Counted.work <= 2 * len(written)


def test_long_tail_takes_the_memory_of_some_blocks(tmp_path: Path) -> None:
    log = AttemptLog(Storage(f"file://{tmp_path}"), "job_x", 1)
    written = b"(RayTrainWorker pid=1234) %s\n" % (b"x" * 640) * 15_000
    log.append(0, written, 16 << 20)
    tracemalloc.start()
    text, position = log.tail(14_999)
    size = sum(len(block) for block in text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (size, position) == (len(written) - 667, 667)
    assert peak < 4 << 20


@given(
    pieces=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=90), max_size=30),
    line_count=st.integers(0, 12),
    position=st.integers(0, 400),
    count=st.integers(1, 100),
)
def test_log_reads_back_what_was_appended(
    pieces: list[str], line_count: int, position: int, count: int
) -> None:
    folder = f"memory://{uuid4().hex}"
    log = AttemptLog(Storage(folder), "job_x", 1)
    written = "".join(pieces).encode()
    for piece in pieces:
        log.append(log.end(), piece.encode(), 16 * 20 * 100)
    all_lines = written.splitlines(keepends=True)
    end = b"".join(all_lines[max(0, len(all_lines) - line_count) :])
    assert tail(log, line_count) == (end, len(written) - len(end))
    assert b"".join(log.text()) == written
    assert log.read(position, count).data == written[position : position + count]
    if written:
        fsspec.filesystem("memory").rm(folder.removeprefix("memory:/"), recursive=True)
