"""The dispatcher of `dasl serve`, in a thread, for the local Ray."""

from __future__ import annotations

import threading

from service.db.session import Database
from service.dispatcher.context import Entrypoints
from service.dispatcher.loop import Dispatcher
from service.dispatcher.ray_executor import RayExecutor
from service.dispatcher.train_policy import Restarted
from service.embedded.local_ray import LocalRay
from service.scheduling.nodes import Cluster
from service.settings import Settings

_JOIN_SECONDS = 2.0


class DispatcherThread(threading.Thread):
    """Runs a dispatcher for the local Ray, which may still be starting, until `stop`.

    Args:
        restarted: what was restarted; Ray's previous jobs are gone then. `None`: Ray kept running.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        ray: LocalRay,
        *,
        restarted: Restarted | None,
    ) -> None:
        super().__init__(name="dispatcher", daemon=True)
        self._executor = RayExecutor(ray.address, ray.token)
        # Unique among live dispatchers, as the home folder is locked.
        holder = f"dasl serve in {settings.home}"[-200:]
        self._dispatcher = Dispatcher(
            settings,
            database,
            self._executor,
            holder=holder,
            entrypoints=Entrypoints.of_this_python(),
        )
        if restarted is not None:
            self._dispatcher.cluster_was_restarted(restarted)
        self._stop_event = threading.Event()
        self._save_seconds = 0.0

    @property
    def cluster(self) -> Cluster | None:
        """The cluster as Ray last described it; None before it has answered."""
        return self._dispatcher.cluster

    def stuck(self) -> str | None:
        """See `Dispatcher.stuck`."""
        return self._dispatcher.stuck()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self._dispatcher.run(self._stop_event, save_seconds=lambda: self._save_seconds)
        finally:
            self._executor.close()

    def stop(self, *, save_seconds: float = 0.0) -> None:
        """Ask the loop to stop, and wait briefly for it; a pending call to Ray may take longer.

        Args:
            save_seconds: how long running attempts may take to save a checkpoint first.
        """
        self._save_seconds = save_seconds
        self._stop_event.set()
        self.join(save_seconds + _JOIN_SECONDS)
