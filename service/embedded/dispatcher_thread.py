"""The dispatcher of `dasl serve`, in a thread, which starts and ends the local Ray."""

import threading

from service.db.session import Database
from service.dispatcher.context import Entrypoints, Restarted
from service.dispatcher.loop import Dispatcher
from service.embedded.on_demand import RayOnDemand
from service.settings import Settings

_JOIN_SECONDS = 2.0


class DispatcherThread(threading.Thread):
    """Runs a dispatcher for the local Ray until `stop`.

    Args:
        restarted: what was restarted, so that Ray's previous jobs are lost. `None`: Ray kept running.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        ray: RayOnDemand,
        *,
        restarted: Restarted | None,
    ) -> None:
        super().__init__(name="dispatcher", daemon=True)
        # Unique among live dispatchers, as the home folder is locked.
        holder = f"dasl serve in {settings.home}"[-200:]
        self._dispatcher = Dispatcher(
            settings,
            database,
            ray,
            holder=holder,
            entrypoints=Entrypoints.for_local_python(),
            on_demand=ray,
        )
        if restarted is not None:
            self._dispatcher.cluster_was_restarted(restarted)
        self._stop_event = threading.Event()
        self._save_seconds = 0.0

    @property
    def in_charge(self) -> bool:
        """Whether the dispatcher holds its lease."""
        return self._dispatcher.in_charge

    def stuck(self) -> str | None:
        return self._dispatcher.stuck()

    def run(self) -> None:
        self._dispatcher.run(self._stop_event, save_seconds=lambda: self._save_seconds)

    def stop(self, *, save_seconds: float = 0.0) -> None:
        """Stop the loop, and wait briefly for it; a pending call to Ray may take longer.

        Args:
            save_seconds: how long running attempts may take to save a checkpoint first.
        """
        self._save_seconds = save_seconds
        self._stop_event.set()
        self.join(save_seconds + _JOIN_SECONDS)
