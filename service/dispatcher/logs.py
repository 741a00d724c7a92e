"""Drivers' logs, copied from Ray into the artifacts while they grow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import fsspec

from service.dispatcher.executor import Executor, ExecutorUnavailable
from service.storage import Storage

logger = logging.getLogger(__name__)

TAIL_LINES = 50
_LONGEST_LINE = 2000


class LogCopier:
    """Copies what is new of a driver's log, at most every `interval` until it is final."""

    def __init__(
        self,
        executor: Executor,
        storage: Storage,
        clock: Callable[[], datetime],
        interval: timedelta = timedelta(seconds=2),
    ) -> None:
        self._executor, self._storage = executor, storage
        self._clock, self._interval = clock, interval
        self._copied_at: dict[str, datetime] = {}

    def follow(self, job_id: str, number: int, submission_id: str) -> None:
        """Copy what a running driver has written, whole lines only, unless it was just done."""
        now = self._clock()
        last = self._copied_at.get(submission_id)
        if last is not None and now - last < self._interval:
            return
        self._copied_at[submission_id] = now
        text = self._executor.logs(submission_id)
        # Half a line may hold half a character, which would read differently next time.
        self._store(job_id, number, text[: text.rfind("\n") + 1])

    def finish(self, job_id: str, number: int, submission_id: str) -> list[str]:
        """Copy the rest of a driver's log; returns its last lines.

        When Ray has forgotten the driver, they are the last lines that were copied.
        """
        self._copied_at.pop(submission_id, None)
        try:
            text = self._executor.logs(submission_id)
        except ExecutorUnavailable as error:
            # The node that has it is gone. An attempt must be able to end without its last lines.
            logger.warning("The rest of the log of %s is lost: %s", submission_id, error)
            text = ""
        if text:
            self._store(job_id, number, text)
            return tail(text)
        uri = self._storage.log_uri(job_id, number)
        kept, _ = self._storage.tail(uri, TAIL_LINES)
        return tail(kept.decode(errors="replace"))

    def _store(self, job_id: str, number: int, text: str) -> None:
        content = text.encode(errors="replace")
        if not content:
            return
        uri = self._storage.log_uri(job_id, number)
        size = self._storage.size(uri) or 0
        if size >= len(content):
            return
        fs, path = fsspec.core.url_to_fs(uri)
        fs.makedirs(fs._parent(path), exist_ok=True)
        if "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
            with fs.open(path, "ab") as file:
                file.write(content[size:])
        else:
            # Object stores cannot append; a put replaces the object in one step.
            fs.pipe_file(path, content)


def tail(text: str) -> list[str]:
    """The last lines of a log, as they go into an error."""
    return [line[:_LONGEST_LINE] for line in text.splitlines()[-TAIL_LINES:]]
