"""Heartbeats of runs that read all images of a data set."""

from __future__ import annotations

import logging
import threading
from typing import Any, Self

from dasl_core.vocabulary import IngestPhase, ModelRunPhase
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.worker import WorkerClient

logger = logging.getLogger(__name__)


class ProgressReports:
    """Sends the number of images read with the heartbeats of a run, from its own thread.

    Args:
    interval: seconds between two heartbeats.
    """

    def __init__(self, client: WorkerClient, interval: float) -> None:
        self._client, self._interval = client, interval
        self._progress: dict[str, Any] = {"images_read": 0, "images_total": 0}
        self._stale: StaleAttempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="heartbeats", daemon=True)

    def __call__(
        self, read: int, total: int, phase: IngestPhase | ModelRunPhase | None = None
    ) -> None:
        """Store the progress for the next heartbeat.

        Args:
        phase: phase of an ingest or a model run.

                Raises:
                    StaleAttempt: the API refused a heartbeat because the run was superseded.
        """
        if self._stale is not None:
            raise self._stale
        of_phase = {} if phase is None else {"phase": phase}
        self._progress = {"images_read": read, "images_total": total, **of_phase}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send_all(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._client.heartbeat(self._progress, patience=0)
            except StaleAttempt as error:
                self._stale = error
                return
            except ConnectionFailed as error:
                logger.info("a heartbeat was not delivered: %s", error)
            except ApiError as error:
                logger.warning("a heartbeat was refused: %s", error)
