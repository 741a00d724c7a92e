"""Rank 0 reports home: in order, in the background, and for as long as it takes.

An API that is away never stops the training; what there is to say waits. What does stop it, at the
next step: the answer that the attempt was replaced or its job has ended, the refusal of a checkpoint,
and a report that cannot be made.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dasl_core.spec.headlines import in_a_line
from dasl_core.train.reporter import Desired, Phase, Subject, progress_line
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.worker import WorkerClient
from workers.artifacts import upload, upload_folder

log = logging.getLogger(__name__)

# One call goes on this long before the loop around it looks whether the run has ended meanwhile.
CALL_PATIENCE_SECONDS = 10.0
# After its last step a run waits so long for an absent API to take its reports, then gives up: the
# dispatcher sees the process end, and the job goes on from its last registered checkpoint.
LAST_WORDS_SECONDS = 600.0
# A run that an error ends waits only so long: what failed must be told and tried again soon, but
# every checkpoint that gets registered before is work that the next attempt need not repeat.
LEAVING_SECONDS = 60.0
# Days of training must not fill the log with lines that say the same.
LOG_PROGRESS_SECONDS = 10.0
METRIC_POINTS_A_CALL = 1000
# An API that is away for days must not fill the memory: then every second metric point is dropped.
METRIC_POINTS_KEPT = 100_000
CONTENT_TYPES = {".png": "image/png", ".json": "application/json"}

Points = list[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """One call of the API, given how many seconds it may go on against an API that is away."""

    send: Callable[[float], object]
    # The run is worth nothing if the API refuses this one.
    required: bool = False


class HomeReporter:
    """The engine's `Reporter` over the worker API. Use as a context manager.

    Leaving it waits up to `LEAVING_SECONDS` for what is still to be said; `flush` waits longer, and
    says when that was not enough.
    """

    def __init__(self, client: WorkerClient, artifacts_uri: str, heartbeat_seconds: float) -> None:
        self._client = client
        self._uri = artifacts_uri
        self._interval = heartbeat_seconds
        # What waits, in order. Metric points stay data, so that they can be joined and thinned.
        self._queue: deque[Report | Points] = deque()
        # What was taken out of the queue and has not arrived yet.
        self._sending: Report | Points | None = None
        self._points = 0  # in both
        self._changed = threading.Condition()
        self._leave_by: float | None = None
        self._progress: dict[str, Any] = {}
        self._worked = 0
        self._saved_step: int | None = None
        self._unlogged: dict[str, Any] | None = None
        self._log_progress_at = 0.0
        self._desired: Desired = "run"
        self._stale: StaleAttempt | None = None
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._mail = threading.Thread(target=self._send_reports, name="reports", daemon=True)
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "HomeReporter":
        self._mail.start()
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._log_progress()  # where the run ended
        with self._changed:
            self._leave_by = time.monotonic() + LEAVING_SECONDS
            self._changed.notify_all()
        # Both end by themselves; a call that hangs must not hold the process, so neither is waited
        # for without limit.
        self._mail.join(timeout=LEAVING_SECONDS + CALL_PATIENCE_SECONDS)
        self._stop.set()
        self._heart.join(timeout=CALL_PATIENCE_SECONDS)
        with self._changed:
            if self._unsent() and self._stale is None:
                log.error("the run has ended, and some of its reports did not arrive")

    def _log_progress(self) -> None:
        if self._unlogged is not None:
            log.info("%s", progress_line(self._unlogged))
            self._log_progress_at = time.monotonic() + LOG_PROGRESS_SECONDS
        self._unlogged = None

    def metrics(self, points: Points) -> None:
        with self._changed:
            if self._queue and isinstance(last := self._queue[-1], list):
                last += points
            else:
                self._queue.append(list(points))
            self._points += len(points)
            if self._points > METRIC_POINTS_KEPT:
                self._thin()
            self._changed.notify_all()

    def progress(self, progress: dict[str, Any]) -> None:
        self._progress = progress
        self._unlogged = progress
        if time.monotonic() >= self._log_progress_at:
            self._log_progress()

    def phase(self, name: Phase, message: str) -> None:
        self.event("phase", message, {"phase": name})

    def keepalive(self) -> None:
        self._worked += 1

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        figures = in_a_line(metrics) or "no headline figures"
        log.info("evaluated %s at step %d: %s", subject, step, figures)
        self._enqueue(
            lambda patience: self._client.evaluation(
                step=step, epoch=epoch, subject=subject, metrics=metrics, patience=patience
            )
        )

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        uri = f"{self._uri}/checkpoints/step-{step:09d}"
        if self._saved_step == step:  # before the final evaluation; now with its figures
            uri += "-final"
        files = upload_folder(folder, uri)
        self._saved_step = step
        size = sum(entry["size"] for entry in files) / 1e6
        log.info("checkpoint of step %d is written, %.1f MB", step, size)
        self._enqueue(
            lambda patience: self._client.checkpoint(
                step=step,
                epoch=epoch,
                uri=uri,
                files=files,
                metrics=metrics,
                final=final,
                patience=patience,
            ),
            required=True,
        )

    def artifact(self, file: Path) -> None:
        uri = f"{self._uri}/artifacts/{file.name}"
        entry = upload(file, uri)
        content_type = CONTENT_TYPES.get(file.suffix, "application/octet-stream")
        self._enqueue(
            lambda patience: self._client.artifact(
                **entry, uri=uri, content_type=content_type, patience=patience
            )
        )

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        log.info("%s", message)
        self._enqueue(lambda patience: self._client.event(type, message, data, patience=patience))

    def desired(self) -> Desired:
        """What the last heartbeat was told. Never waits.

        Raises:
            StaleAttempt: another attempt has taken over, or the job has ended.
            ApiError: the API refused a checkpoint.
            Exception: whatever else made a report impossible.
        """
        self._raise_if_over()
        return self._desired

    def flush(self) -> None:
        """Wait until all reports have arrived, and with them how far the run got.

        Raises:
            TimeoutError: the API stayed away for ten minutes.
            Exception: as `desired`.
        """
        self._enqueue(self._heartbeat)
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over() or not self._unsent(), timeout=LAST_WORDS_SECONDS
            )
            self._raise_if_over()
            if self._unsent():
                raise TimeoutError(f"reports did not arrive within {LAST_WORDS_SECONDS:.0f} s")

    def _is_over(self) -> bool:
        return self._stale is not None or self._failure is not None

    def _raise_if_over(self) -> None:
        # An attempt that is not wanted any more has no failure to tell.
        if self._stale is not None:
            raise self._stale
        if self._failure is not None:
            raise self._failure

    def _unsent(self) -> bool:
        return self._sending is not None or bool(self._queue)

    def _enqueue(self, send: Callable[[float], object], required: bool = False) -> None:
        with self._changed:
            self._queue.append(Report(send, required))
            self._changed.notify_all()

    def _thin(self) -> None:
        """Drop every second of the metric points in the queue, counted across its batches."""
        thinned: deque[Report | Points] = deque()
        seen = kept = 0
        for entry in self._queue:
            if isinstance(entry, list):
                half = entry[(seen + 1) % 2 :: 2]
                seen += len(entry)
                kept += len(half)
                if half:
                    thinned.append(half)
            else:
                thinned.append(entry)
        self._queue = thinned
        self._points -= seen - kept

    def _send_reports(self) -> None:
        while (entry := self._next()) is not None:
            if isinstance(entry, list):
                arrived = self._call(Report(partial(self._send_points, entry)))
            else:
                arrived = self._call(entry)
            if arrived:
                with self._changed:
                    self._sending = None
                    self._points -= len(entry) if isinstance(entry, list) else 0
                    self._changed.notify_all()
            elif self._stale is None:
                self._stop.wait(min(self._interval, self._patience()))

    def _next(self) -> Report | Points | None:
        """Wait for something to send; None when there will be nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent() or self._leave_by is not None)
            late = self._leave_by is not None and time.monotonic() >= self._leave_by
            if self._stale is not None or late or not self._unsent():
                return None
            if self._sending is None:
                first = self._queue.popleft()
                if isinstance(first, list) and len(first) > METRIC_POINTS_A_CALL:
                    self._queue.appendleft(first[METRIC_POINTS_A_CALL:])
                    first = first[:METRIC_POINTS_A_CALL]
                self._sending = first
            return self._sending

    def _send_points(self, points: Points, patience: float) -> None:
        self._client.metrics(points, patience=patience)

    def _beat(self) -> None:
        while self._stale is None and not self._stop.is_set():
            self._call(Report(self._heartbeat))
            self._stop.wait(self._interval)

    def _heartbeat(self, patience: float) -> None:
        progress = self._progress
        if self._worked:
            # Progress that changes: where nothing does, the service takes a run to hang.
            progress = {**progress, "worked": self._worked}
        self._desired = self._client.heartbeat(progress, patience=patience)

    def _patience(self) -> float:
        """Seconds that a call may go on against an API that is away."""
        if self._leave_by is None:
            return CALL_PATIENCE_SECONDS
        return min(CALL_PATIENCE_SECONDS, max(0.0, self._leave_by - time.monotonic()))

    def _call(self, report: Report) -> bool:
        """Whether the report has arrived, or never will and was logged."""
        try:
            report.send(self._patience())
        except StaleAttempt as error:
            with self._changed:
                self._stale = error
                self._changed.notify_all()
            return False
        except ConnectionFailed as error:
            log.warning("the API does not answer, training goes on: %s", error)
            return False
        except ApiError as error:
            if error.status >= 500:
                log.warning("the API is in trouble, training goes on: %s", error)
                return False
            log.error("the API refused a report: %s", error)
            if report.required:
                self._fail(error)
        except Exception as error:
            log.exception("a report cannot be made")
            self._fail(error)
        return True

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
