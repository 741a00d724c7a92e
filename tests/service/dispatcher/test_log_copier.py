"""The log copier: what it copies of a driver's log, how much it reads, and what it keeps."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.db.session import Database
from service.dispatcher import log_copier
from service.dispatcher.context import DispatcherContext, Entrypoints, LeaseLost
from service.dispatcher.log_copier import LogCopier
from service.scheduling.repository import AttemptView
from service.settings import Settings
from tests.support.fake_executor import FakeExecutor

NAME = "job_x-1"
LIMIT = 16 * 1000


def attempt(submission_id: str = NAME) -> AttemptView:
    fields = {"job_id": "job_x", "number": 1, "submission_id": submission_id}
    return cast("AttemptView", SimpleNamespace(**fields))


class Copying:
    """A driver's log, its copy, and a clock between them."""

    def __init__(self, folder: Path, root: str = "") -> None:
        self.folder = folder
        self.executor = FakeExecutor()
        self.now = datetime.now(UTC)
        self.storage = Storage(root or f"file://{folder}")
        self.log = AttemptLog(self.storage, "job_x", 1)
        self.restart()

    def restart(self) -> None:
        self.context = DispatcherContext(
            Settings(home=self.folder.parent, log_max_bytes=LIMIT),
            Database(f"sqlite:///{self.folder.parent}/dasl.db"),
            self.storage,
            self.executor,
            lambda: self.now,
            "me",
            Entrypoints(),
            renewed_at=self.now,
        )
        self.copier = LogCopier(self.context)

    def write(self, text: str | bytes, name: str = NAME) -> None:
        self.executor.write_log(name, text if isinstance(text, bytes) else text.encode())

    def look(self, seconds: float = 60, name: str = NAME) -> None:
        self.now += timedelta(seconds=seconds)
        self.context.renewed_at = self.now
        self.copier.follow(attempt(name))

    def follow(self, seconds: float = 60) -> bytes:
        self.look(seconds)
        return self.kept()

    def finish(self) -> list[str]:
        return self.copier.finish(attempt())

    def kept(self) -> bytes:
        return b"".join(self.log.text())


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Copying]:
    copying = Copying(tmp_path / "artifacts")
    yield copying
    copying.executor.close()


def test_only_new_bytes_are_read_even_after_restart(copying: Copying) -> None:
    assert copying.follow() == b""
    copying.write("one\ntwo\nhal")
    assert copying.follow() == b"one\ntwo\n"
    copying.write("f a line\n")
    assert copying.follow(0.5) == b"one\ntwo\n", "it was just done"
    copying.executor.log_bytes_read = 0
    assert copying.follow() == b"one\ntwo\nhalf a line\n"
    assert copying.executor.log_bytes_read == len("half a line\n")
    copying.restart()
    assert copying.follow() == b"one\ntwo\nhalf a line\n"
    assert copying.executor.log_bytes_read == len("half a line\n")
    copying.write("and the rest")
    assert copying.finish() == ["one", "two", "half a line", "and the rest"]
    assert copying.kept() == b"one\ntwo\nhalf a line\nand the rest"


def test_log_is_left_to_the_dispatcher_that_took_over(copying: Copying) -> None:
    copying.write("one\n")
    assert copying.follow() == b"one\n"
    copying.write("two\n")
    copying.now += timedelta(seconds=60)
    copying.context.renewed_at = None
    with pytest.raises(LeaseLost):
        copying.copier.follow(attempt())
    assert copying.kept() == b"one\n"


def test_bytes_that_are_no_text_are_kept(copying: Copying) -> None:
    content = b"\xff\xfe\r\n50%\r100%\r\n\x1b[31m\n"
    copying.write(content)
    assert copying.follow() == content
    assert copying.finish()[0] == "\ufffd\ufffd"


def test_growing_log_is_bounded(copying: Copying) -> None:
    line = "{:098}\n"
    for number in range(1000):
        copying.write(line.format(number))
        if number % 10 == 0:
            copying.follow()
    lines = copying.finish()
    kept = copying.kept().splitlines()
    size = sum(part.end - part.start for part in copying.log.parts())
    assert LIMIT - 2 * 1000 <= size <= LIMIT
    hole = next(index for index, text in enumerate(kept) if b"left out" in text)
    assert [int(text) for text in kept[:hole]] == list(range(hole))
    after = len(kept) - hole - 1
    assert [int(text) for text in kept[hole + 1 :]] == list(range(1000 - after, 1000))
    assert [int(text) for text in lines] == list(range(950, 1000))


def test_fast_writer_is_not_read_completely(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "_BLOCK", 2000)
    line = "{:099}\n"
    copying.write("".join(line.format(number) for number in range(100_000)))
    for _ in range(100):
        copying.follow()
    lines = copying.finish()
    kept = copying.kept().splitlines()
    assert copying.executor.log_bytes_read < 3 * LIMIT + log_copier._TAIL_BYTES
    assert (int(kept[0]), int(kept[-1])) == (0, 99_999)
    assert [int(text) for text in lines] == list(range(99_950, 100_000))


def test_unfinished_line_is_copied_at_block_size(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "_BLOCK", 100)
    copying.write("." * 250)
    assert copying.follow() == b"." * 100
    assert copying.follow() == b"." * 200
    assert copying.follow() == b"." * 200
    copying.finish()
    assert copying.kept() == b"." * 250


def test_logs_that_cannot_be_had_or_stored_hold_nothing_up(
    copying: Copying, caplog: pytest.LogCaptureFixture
) -> None:
    copying.write("one\ntwo\n")
    copying.follow()
    copying.executor.away = True
    copying.follow()
    assert copying.finish() == ["one", "two"], "what was copied before"
    copying.executor.away = False
    copying.write("three\n")
    shutil.rmtree(copying.folder)
    copying.folder.write_text("a file where a folder must be")
    copying.look()
    assert copying.finish() == ["one", "two", "three"], "what the driver wrote"
    assert len([r for r in caplog.records if "is not copied now" in r.message]) == 2
    assert len([r for r in caplog.records if "cannot be stored" in r.message]) == 1


def test_last_lines_are_bounded(copying: Copying) -> None:
    copying.write("\n".join(["x" * 5000] * 60))
    lines = copying.finish()
    assert len(lines) == log_copier.TAIL_LINES
    assert max(map(len, lines)) == 2000


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_log_of_a_repeated_attempt_replaces_that_of_a_replaced_database(
    tmp_path: Path, store_root: str, ended: bool
) -> None:
    """A restored backup does not know the attempt, and the next one has the same number."""
    copying = Copying(tmp_path / "artifacts", store_root)
    copying.write("one\ntwo\n")
    copying.follow()
    copying.restart()
    copying.write("new one\nnew two\nnew three\n", "job_x-1-b")
    if ended:
        copying.copier.finish(attempt("job_x-1-b"))
    else:
        copying.look(name="job_x-1-b")
    assert copying.kept() == b"new one\nnew two\nnew three\n"
    copying.executor.close()


def test_log_of_an_adopted_attempt_is_continued(tmp_path: Path, store_root: str) -> None:
    copying = Copying(tmp_path / "artifacts", store_root)
    copying.write("one\n")
    copying.log.append(0, b"one\n", LIMIT)
    copying.write("two\n")
    for _ in range(2):
        copying.restart()
        copying.executor.log_bytes_read = 0
        assert copying.follow() == b"one\ntwo\n"
        assert copying.executor.log_bytes_read <= len("two\n")
    copying.executor.close()
