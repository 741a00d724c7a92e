"""Rank 0 reports home: in order, in the background, and for as long as it takes.

An API that is away never stops the training; what there is to say waits. An answer that the attempt
was replaced, or its job has ended, stops it at the next step.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dasl_core.train.reporting import Desired, Subject
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.worker import WorkerClient
from workers.artifacts import upload, upload_folder

log = logging.getLogger(__name__)

# One call goes on this long before the loop around it looks whether the run has ended meanwhile.
CALL_PATIENCE_SECONDS = 10.0
# After its last step a run waits so long for an absent API to take its reports, then gives up: the
# dispatcher sees the process end, and the job goes on from its last registered checkpoint.
LAST_WORDS_SECONDS = 600.0
METRIC_POINTS_A_CALL = 1000
# An API that is away for days must not fill the memory: then every second metric point is dropped.
METRIC_POINTS_KEPT = 100_000
CONTENT_TYPES = {".png": "image/png", ".json": "application/json"}


class HomeReporter:
    """The engine's `Reporter` over the worker API. Use as a context manager."""

    def __init__(self, client: WorkerClient, artifacts_uri: str, heartbeat_seconds: float) -> None:
        self._client = client
        self._uri = artifacts_uri
        self._interval = heartbeat_seconds
        self._reports: deque[Callable[[], None]] = deque()
        self._points: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._progress: dict[str, Any] = {}
        self._desired: Desired = "run"
        self._stale: StaleAttempt | None = None
        self._stop_heart = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_reports, name="reports", daemon=True),
            threading.Thread(target=self._beat, name="heartbeat", daemon=True),
        ]

    def __enter__(self) -> "HomeReporter":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_heart.set()
        with self._changed:
            self._closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join(timeout=CALL_PATIENCE_SECONDS)

    def metrics(self, points: list[dict[str, Any]]) -> None:
        with self._changed:
            self._points += points
            if len(self._points) > METRIC_POINTS_KEPT:
                del self._points[::2]
            self._changed.notify()

    def progress(self, progress: dict[str, Any]) -> None:
        self._progress = progress

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        self._enqueue(
            lambda: self._client.evaluation(
                step=step,
                epoch=epoch,
                subject=subject,
                metrics=metrics,
                patience=CALL_PATIENCE_SECONDS,
            )
        )

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        uri = f"{self._uri}/checkpoints/step-{step:09d}"
        files = upload_folder(folder, uri)
        self._enqueue(
            lambda: self._register(
                step=step, epoch=epoch, uri=uri, files=files, metrics=metrics, final=final
            )
        )

    def artifact(self, file: Path) -> None:
        uri = f"{self._uri}/artifacts/{file.name}"
        entry = upload(file, uri)
        content_type = CONTENT_TYPES.get(file.suffix, "application/octet-stream")
        self._enqueue(
            lambda: self._client.artifact(
                **entry, uri=uri, content_type=content_type, patience=CALL_PATIENCE_SECONDS
            )
        )

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        self._enqueue(
            lambda: self._client.event(type, message, data, patience=CALL_PATIENCE_SECONDS)
        )

    def desired(self) -> Desired:
        """What the last heartbeat was told.

        Raises:
            StaleAttempt: another attempt has taken over, or the job has ended.
        """
        if self._stale is not None:
            raise self._stale
        return self._desired

    def flush(self) -> None:
        """Wait until all reports have arrived, and with them how far the run got.

        Raises:
            StaleAttempt: as `desired`.
            TimeoutError: the API stayed away for ten minutes.
        """
        self._enqueue(self._heartbeat)
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: self._stale is not None or not (self._reports or self._points),
                timeout=LAST_WORDS_SECONDS,
            )
        if self._stale is not None:
            raise self._stale
        if not arrived:
            raise TimeoutError(f"reports did not arrive within {LAST_WORDS_SECONDS:.0f} s")

    def _register(self, **checkpoint: Any) -> None:
        self._client.checkpoint(**checkpoint, patience=CALL_PATIENCE_SECONDS)

    def _enqueue(self, report: Callable[[], None]) -> None:
        with self._changed:
            # Points measured before this report go before it.
            self._points_to_reports()
            self._reports.append(report)
            self._changed.notify()

    def _points_to_reports(self) -> None:
        for first in range(0, len(self._points), METRIC_POINTS_A_CALL):
            points = self._points[first : first + METRIC_POINTS_A_CALL]
            self._reports.append(
                lambda points=points: self._client.metrics(  # type: ignore[misc]
                    points, patience=CALL_PATIENCE_SECONDS
                )
            )
        self._points = []

    def _send_reports(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._reports or self._points or self._closing)
                if self._closing:
                    return
                if not self._reports:
                    self._points_to_reports()
                report = self._reports[0]
            # Left in the queue until it has arrived, so that `flush` waits for it.
            if self._call(report):
                with self._changed:
                    self._reports.popleft()
                    self._changed.notify_all()
            elif self._stale is not None:
                with self._changed:
                    self._changed.notify_all()
                return

    def _beat(self) -> None:
        while not self._stop_heart.is_set():
            self._call(self._heartbeat)
            if self._stale is not None:
                return
            self._stop_heart.wait(self._interval)

    def _heartbeat(self) -> None:
        self._desired = self._client.heartbeat(self._progress, patience=CALL_PATIENCE_SECONDS)

    def _call(self, report: Callable[[], None]) -> bool:
        """Whether the report has arrived, or never will and was logged."""
        try:
            report()
        except StaleAttempt as error:
            self._stale = error
            return False
        except ConnectionFailed as error:
            log.warning("the API does not answer, training goes on: %s", error)
            time.sleep(self._interval)
            return False
        except ApiError as error:
            if error.status >= 500:
                log.warning("the API is in trouble, training goes on: %s", error)
                time.sleep(self._interval)
                return False
            log.error("the API refused a report: %s", error)
        return True
