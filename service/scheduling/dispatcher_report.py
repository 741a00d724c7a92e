"""What the dispatcher reports of itself: for metrics, `/readyz` and `/v1/cluster`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from service.db.models import ClusterSnapshot


class StoreReport(BaseModel):
    """State of the artifact store, as the dispatcher last found it."""

    model_config = ConfigDict(extra="ignore")

    checked_at: datetime
    problem: str | None = None
    """Why nothing can be written there; `None`: it is writable."""
    free_bytes: int | None = None
    """Free space; `None` if the store is not a local folder."""
    checkpoint_bytes: int = 0
    """Size of all registered checkpoints."""
    artifact_bytes: int = 0
    """Size of all other files of jobs."""


class RayReport(BaseModel):
    """State of a Ray that does not run, because it is started for work only."""

    model_config = ConfigDict(extra="ignore")

    state: Literal["idle", "starting"]
    problem: str | None = None
    """Why its last start failed."""


class DispatcherReport(BaseModel):
    """State of the dispatcher that wrote the snapshot. Unknown keys of another version are ignored."""

    model_config = ConfigDict(extra="ignore")

    started_at: datetime
    ray_version: str | None = None
    ray_tested: bool | None = None
    ray: RayReport | None = None
    """Set while Ray does not run because nothing needs it, or starts for work."""
    failed_rounds: dict[str, int] = {}
    """Rounds that failed since its start, by loop."""
    store: StoreReport | None = None
    api_answers: bool = True
    """Whether the API answers this dispatcher, as far as known."""

    @property
    def is_writable(self) -> bool:
        """Whether the artifact store is writable, as far as known."""
        return self.store is None or self.store.problem is None

    @classmethod
    def of(cls, snapshot: ClusterSnapshot | None) -> DispatcherReport | None:
        """Return the report in a snapshot; `None` if there is none."""
        return None if snapshot is None else cls.model_validate(snapshot.dispatcher)
