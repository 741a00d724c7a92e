"""Live streams of a job's events and log, from a position on."""

import time
from dataclasses import dataclass, field

from fastapi.sse import format_sse_event

from service.api.sse import PollResult
from service.api.transaction import Context
from service.artifacts.attempt_log import AttemptLog, omission_line
from service.events.views import event_view
from service.jobs import repository
from service.states import TERMINAL

_EVENTS_AT_ONCE = 500
_LOG_BYTES_AT_ONCE = 1 << 20
# The end of a driver's log is copied after the job has ended.
_LOG_SETTLES_SECONDS = 3.0


@dataclass
class EventStream:
    """A job's events after the sequence number `after`."""

    context: Context
    job_id: str
    after: int

    def poll(self) -> PollResult:
        """Read the events since the last poll; the stream ends after the last event of a job that has ended."""
        with self.context.database.read() as session:
            # Read the status first: if it is terminal, no event can follow the ones that are read next.
            if (state := repository.status_and_last_event(session, self.job_id)) is None:
                return PollResult([], ended=True)
            status, last = state
            rows = repository.events(session, self.job_id, self.after, _EVENTS_AT_ONCE)
            views = [event_view(row) for row in rows[:_EVENTS_AT_ONCE]]
        messages = [
            format_sse_event(id=str(view.seq), data_str=view.model_dump_json()) for view in views
        ]
        if views:
            self.after = views[-1].seq
        return PollResult(
            messages,
            more=len(rows) > _EVENTS_AT_ONCE,
            ended=status in TERMINAL and self.after >= last,
        )


@dataclass
class LogStream:
    """A job's log from byte `offset` of attempt `number` on, attempt after attempt."""

    context: Context
    job_id: str
    number: int
    offset: int = 0
    _end: int = 0
    _quiet_since: float = field(default_factory=time.monotonic)

    def poll(self) -> PollResult:
        """Read whole lines since the last poll; the stream ends once the job has ended and its log has stopped growing."""
        with self.context.database.read() as session:
            if (state := repository.status_and_last_event(session, self.job_id)) is None:
                return PollResult([], ended=True)
            status, _ = state
            numbers = [attempt.number for attempt in repository.attempts(session, self.job_id)]
        ended, newest = status in TERMINAL, max(numbers, default=0)
        if self.number == 0 and newest > 0:
            self.number = 1
        log = AttemptLog(self.context.storage, self.job_id, self.number)
        piece = log.read(self.offset, _LOG_BYTES_AT_ONCE)
        now = time.monotonic()
        if piece.end > self._end:
            self._end, self._quiet_since = piece.end, now
        settled = now - self._quiet_since >= _LOG_SETTLES_SECONDS
        block, skipped = piece.data, piece.start - self.offset
        is_over = self.number < newest or ended
        is_last_piece = piece.start + len(block) == piece.end
        if is_last_piece and not (is_over and settled) and len(block) < _LOG_BYTES_AT_ONCE:
            # Send an unfinished line once it is complete.
            block = block[: block.rfind(b"\n") + 1]
        messages = []
        if block:
            self.offset = piece.start + len(block)
            text = (omission_line(skipped) if skipped else b"") + block
            lines = text.decode("utf-8", "replace").removesuffix("\n")
            position = f"{self.number}:{self.offset}"
            messages.append(format_sse_event(id=position, event="log", data_str=lines))
        done = self.offset >= piece.end
        if done and is_over and settled and self.number < newest:
            self.number, self.offset = self.number + 1, 0
            self._end, self._quiet_since = 0, now
            return PollResult(messages, more=True)
        return PollResult(messages, more=not done and bool(block), ended=ended and done and settled)
