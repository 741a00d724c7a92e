"""Heartbeats of a run, with its progress."""

import logging
import threading
from collections.abc import Mapping
from typing import Any, Self

from dasl_core.vocabulary import IngestPhase, ModelRunPhase
from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.worker import WorkerClient

logger = logging.getLogger(__name__)

NOTHING_READ = {"images_read": 0, "images_total": 0}


class Heartbeats:
    """Context manager that sends heartbeats from its own thread.

    Args:
        interval: seconds between two heartbeats.
        progress: sent with them until it is replaced by a call.
        patience: seconds for which a heartbeat is retried.
    """

    def __init__(
        self,
        client: WorkerClient,
        interval: float,
        *,
        progress: Mapping[str, Any] = NOTHING_READ,
        patience: float = 0,
    ) -> None:
        self._client, self._interval = client, interval
        self._progress, self._patience = progress, patience
        self._stale: StaleAttempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="heartbeats", daemon=True)

    def __call__(
        self, read: int, total: int, phase: IngestPhase | ModelRunPhase | None = None
    ) -> None:
        """Store the number of images read for the next heartbeat.

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
        self._thread.join(timeout=self._interval)

    def _send_all(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._client.heartbeat(self._progress, patience=self._patience)
            except StaleAttempt as error:
                self._stale = error
                return
            except (ConnectionFailed, ApiError) as error:
                # The process may close the connection during a slow heartbeat.
                if not self._ended.is_set():
                    logger.warning("no heartbeat, the run continues: %s", error)
