"""Reporter of rank 0, which sends reports to the worker API.

An unavailable API does not stop the training: reports wait in the queue. The training stops at the next
step if the API answers that the attempt was superseded or its job has ended, if the API refuses a
checkpoint, or if a report cannot be created.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from dasl_core.headlines import headline
from dasl_core.train.reporter import progress_line
from dasl_core.vocabulary import Desired, Phase, Subject
from service.client.worker import WorkerClient, finite
from workers.artifacts import upload, upload_checkpoint
from workers.report_queue import CALL_PATIENCE_SECONDS, Points, ReportQueue

logger = logging.getLogger(__name__)

# Days of training must not fill the log with progress lines.
LOG_PROGRESS_SECONDS = 10.0
CONTENT_TYPES = {
    ".png": "image/png",
    ".webp": "image/webp",
    ".json": "application/json",
    ".html": "text/html",
}


class ApiReporter:
    """Context manager that sends reports and heartbeats of rank 0: a `dasl_core.train.reporter.Reporter`.

    On exit it waits for undelivered reports, as `ReportQueue.close` does. `flush` waits longer, and raises
    an error if reports are still undelivered.

    Args:
        job, attempt: identity of the run, for the manifests of its checkpoints.
    """

    def __init__(
        self,
        client: WorkerClient,
        job: str,
        attempt: int,
        artifacts_uri: str,
        heartbeat_seconds: float,
    ) -> None:
        self._client = client
        self._job, self._attempt = job, attempt
        self._uri = artifacts_uri
        self._interval = heartbeat_seconds
        self._queue = ReportQueue(
            lambda points, patience: client.metrics(points, patience=patience), heartbeat_seconds
        )
        self._progress: dict[str, Any] = {}
        self._worked = 0
        self._saved_step: int | None = None
        self._unlogged: dict[str, Any] | None = None
        self._log_progress_at = 0.0
        self._desired: Desired = "run"
        self._stop = threading.Event()
        self._heartbeats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "ApiReporter":
        self._queue.start()
        self._heartbeats.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._log_progress()  # the last step may not be logged yet
        self._queue.close()
        self._stop.set()
        self._heartbeats.join(timeout=CALL_PATIENCE_SECONDS)

    def metrics(self, points: Points) -> None:
        self._queue.put_points(points)

    def progress(self, progress: dict[str, Any]) -> None:
        self._progress = progress
        self._unlogged = progress
        if time.monotonic() >= self._log_progress_at:
            self._log_progress()

    def phase(self, name: Phase, message: str) -> None:
        self.event("phase", message, {"phase": name})

    def keepalive(self) -> Desired:
        self._count_work()
        return self.desired()

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        summary = headline(metrics) or "no headline metrics"
        logger.info("evaluated %s at step %d: %s", subject, step, summary)
        self._queue.put(
            lambda patience: self._client.evaluation(
                step=step, epoch=epoch, subject=subject, metrics=metrics, patience=patience
            )
        )

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        uri = f"{self._uri}/checkpoints/step-{step:09d}"
        if self._saved_step == step:  # saved before the final evaluation, now with its metrics
            uri += "-final"
        about: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "final": final,
            "metrics": finite(metrics),
        }
        run = {"job": self._job, "attempt": self._attempt}
        files = upload_checkpoint(folder, uri, run | about, self._count_work)
        self._saved_step = step
        size = sum(entry.size for entry in files) / 1e6
        logger.info("checkpoint of step %d is written, %.1f MB", step, size)
        self._queue.put(
            lambda patience: self._client.checkpoint(
                uri=uri, files=files, patience=patience, **about
            ),
            required=True,
        )

    def artifact(self, file: Path) -> None:
        uri = f"{self._uri}/artifacts/{file.name}"
        entry = upload(file, uri, self._count_work)
        content_type = CONTENT_TYPES.get(file.suffix, "application/octet-stream")
        self._queue.put(
            lambda patience: self._client.artifact(
                **entry.model_dump(), uri=uri, content_type=content_type, patience=patience
            )
        )

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        logger.info("%s", message)
        self._queue.put(lambda patience: self._client.event(type, message, data, patience=patience))

    def desired(self) -> Desired:
        """Return the answer to the last heartbeat, or raise as `ReportQueue.raise_if_over`. Never waits."""
        self._queue.raise_if_over()
        return self._desired

    def flush(self) -> None:
        """Wait until all reports and the latest progress are delivered.

        Raises:
            ReportsUndelivered: the API was unavailable for ten minutes.
            Exception: as `ReportQueue.raise_if_over`.
        """
        self._queue.put(self._heartbeat)
        self._queue.flush()

    def _count_work(self) -> None:
        self._worked += 1

    def _log_progress(self) -> None:
        if self._unlogged is not None:
            logger.info("%s", progress_line(self._unlogged))
            self._log_progress_at = time.monotonic() + LOG_PROGRESS_SECONDS
        self._unlogged = None

    def _beat(self) -> None:
        while not self._queue.stale and not self._stop.is_set():
            self._queue.deliver(self._heartbeat)
            self._stop.wait(self._interval)

    def _heartbeat(self, patience: float) -> None:
        progress = self._progress
        if self._worked:
            # Counts work between steps, because a run without progress counts as hanging.
            progress = {**progress, "worked": self._worked}
        self._desired = self._client.heartbeat(progress, patience=patience)
