"""Rows of tables are read forward: each group once, of threads that are nearly in order, and in bounded memory."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.data.sources import Entry, find_source
from dasl_core.data.sources import parquet as parquet_source
from dasl_core.data.sources.forward_rows import _OF_ROW, ForwardRows, Row
from dasl_core.storage import LocalStorage

BATCH, BYTES = 4, 1000


class Groups:
    """Groups of 40 rows, and how often one was opened, or a batch was read."""

    def __init__(self, rows: int = 40) -> None:
        self.rows, self.opened, self.batches = rows, 0, 0

    def open(self, table: int, group: int) -> Iterator[list[bytes | str]]:
        self.opened += 1
        for begin in range(0, self.rows, BATCH):
            self.batches += 1
            yield [image(Row(table, group, each)) for each in range(begin, begin + BATCH)]


def image(row: Row) -> bytes | str:
    return "the row has no image" if row.position == 7 else bytes([*row]) + bytes(BYTES - 3)


@given(
    st.lists(st.builds(Row, st.integers(0, 1), st.integers(0, 2), st.integers(0, 39)), max_size=60),
    st.integers(1, 60 * BYTES),
)
def test_any_row_is_read_in_any_order_and_bytes_are_bounded(rows: list[Row], most: int) -> None:
    reader = ForwardRows(Groups().open, most)
    for row in rows:
        assert reader.read(row) == image(row)
        sizes = [len(kept) + _OF_ROW for kept in reader._kept.values()]
        assert sum(sizes) == reader._kept_bytes <= max(most, BATCH * (BYTES + _OF_ROW))


def test_threads_that_are_nearly_in_order_read_a_group_once() -> None:
    groups = Groups()
    reader = ForwardRows(groups.open, BATCH * (BYTES + _OF_ROW))  # only one batch is kept
    begun = threading.Event()
    opened = groups.open

    def open_when_all_wait(table: int, group: int) -> Iterator[list[bytes | str]]:
        assert begun.wait(60)
        return opened(table, group)

    reader._open_group = open_when_all_wait
    rows = [Row(0, group, position) for group in range(2) for position in range(groups.rows)]
    with ThreadPoolExecutor(len(rows) + 1) as pool:
        first = pool.submit(reader.read, rows[0])
        mixed = [rows[each] for each in np.random.default_rng(0).permutation(len(rows))]
        others = [pool.submit(reader.read, row) for row in mixed]
        while len(reader._waiting) < len(mixed):  # the first one reads
            assert not first.done()
        begun.set()
        assert [each.result() for each in others] == [image(row) for row in mixed]
    assert (groups.opened, groups.batches) == (2, 2 * groups.rows // BATCH)


def test_rows_behind_damage_do_not_read_the_group_again() -> None:
    opened: list[int] = []

    def open_group(table: int, group: int) -> Iterator[list[bytes | str]]:
        opened.append(group)
        yield [b"a", b"b"]
        raise ValueError("the table is damaged")

    reader = ForwardRows(open_group, 0)
    for position in (2, 3, 90):
        with pytest.raises(ValueError, match="the table is damaged"):
            reader.read(Row(0, 0, position))
    assert opened == [0]
    assert reader.read(Row(0, 0, 1)) == b"b"
    short = ForwardRows(lambda table, group: iter([[b"a"]]), 0)
    with pytest.raises(ValueError, match="fewer rows than the table says"):
        short.read(Row(0, 0, 1))


def test_group_is_read_again_after_the_store_did_not_answer() -> None:
    failures = [OSError("the store does not answer")]

    def open_group(table: int, group: int) -> Iterator[list[bytes | str]]:
        yield [b"a"]
        if failures:
            raise failures.pop()
        yield [b"b"]

    reader = ForwardRows(open_group, 0)
    with pytest.raises(OSError, match="does not answer"):
        reader.read(Row(0, 0, 1))
    assert reader.read(Row(0, 0, 1)) == b"b"


def test_large_group_of_a_parquet_file_is_never_whole_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group of 8 MB, in pages of 100 kB."""
    size, rows = 20_000, 400
    images = [np.random.default_rng(row).bytes(size) for row in range(rows)]
    parquet.write_table(
        pyarrow.table({"image": images, "label": [f"class {row % 3}" for row in range(rows)]}),
        tmp_path / "t.parquet",
        use_dictionary=False,
        write_batch_size=5,
        data_page_size=5 * size,
    )
    assert parquet.ParquetFile(tmp_path / "t.parquet").metadata.num_row_groups == 1
    most = 400_000
    monkeypatch.setattr(parquet_source, "_KEPT_BYTES", most)
    reads = [0]

    class Counting(LocalStorage):
        def open(self, path: str, size: int = -1) -> BinaryIO:
            file: Any = super().open(path)

            class Counted:
                def read(self, count: int = -1) -> bytes:
                    content: bytes = file.read(count)
                    reads.append(len(content))
                    return content

                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

            counted: Any = Counted()
            return counted  # type: ignore[no-any-return]

    source = find_source(str(tmp_path / "t.parquet")).open()
    assert isinstance(source, parquet_source.ParquetSource)
    source.storage = Counting(tmp_path)
    before = pyarrow.total_allocated_bytes()
    entries = source.list_entries(lambda found: None).entries
    assert [entry.label for entry in entries[:4]] == ["class 0", "class 1", "class 2", "class 0"]
    for entry, expected in zip(entries, images, strict=True):
        assert source.open(entry).read() == expected
        assert pyarrow.total_allocated_bytes() - before < 2_500_000
        assert source._images._kept_bytes <= most
    assert max(reads) <= 2 * parquet_source._BUFFER_BYTES
    assert sum(reads) < 1.1 * rows * size, "in order, each byte is read once"
    for position in np.random.default_rng(0).permutation(rows)[:5].tolist():
        assert source.open(entries[position]).read() == images[position]
    with pytest.raises(ValueError, match="fewer rows than at ingest"):
        source.open(Entry("t/999", file=0, offset=999))
