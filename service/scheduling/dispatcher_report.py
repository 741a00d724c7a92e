"""State of the dispatcher, for metrics, `/readyz` and `/v1/cluster`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from service.db.models import ClusterSnapshot


class StoreReport(BaseModel):
    """State of the artifact store at the dispatcher's last check."""

    checked_at: datetime
    problem: str | None = None
    """Why the store cannot be written; `None`: it is writable."""
    free_bytes: int | None = None
    """Free space; `None` if the store is not a local folder."""
    checkpoint_bytes: int = 0
    """Size of all registered checkpoints."""
    artifact_bytes: int = 0
    """Size of all other files of jobs."""


class RayReport(BaseModel):
    """State of a Ray that runs only while there is work, and does not run now."""

    state: Literal["idle", "starting"]
    problem: str | None = None
    """Why its last start failed."""


class DispatcherReport(BaseModel):
    """State of the dispatcher that wrote the snapshot. Unknown keys of another version are ignored."""

    started_at: datetime
    ray_version: str | None = None
    ray_tested: bool | None = None
    ray: RayReport | None = None
    """Set while Ray does not run, because there is no work or because it is starting."""
    head_memory: float | None = None
    """Share of the memory of Ray's head that is in use; `None` if Ray does not report it."""
    failed_rounds: dict[str, int] = {}
    """Number of failed rounds since the dispatcher's start, by loop."""
    store: StoreReport | None = None
    api_answers: bool = True
    """Whether the API answered this dispatcher recently."""

    @property
    def is_writable(self) -> bool:
        """Whether the artifact store was writable at the last check."""
        return self.store is None or self.store.problem is None

    @classmethod
    def from_snapshot(cls, snapshot: ClusterSnapshot | None) -> DispatcherReport | None:
        """Read the report from a snapshot; `None` if it has none."""
        return None if snapshot is None else cls.model_validate(snapshot.dispatcher)
