"""The cluster and the catalog as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class QueuedJob(BaseModel):
    """A job that waits for room."""

    id: str
    name: str
    priority: int
    created_at: datetime


class ClusterView(BaseModel):
    """What the dispatcher last saw; `at` is null before it saw anything."""

    at: datetime | None = None
    alive: bool = False
    nodes: list[dict[str, Any]] = []
    total_cpus: float = 0
    total_gpus: float = 0
    used_cpus: float = 0
    used_gpus: float = 0
    free_cpus: float = 0
    free_gpus: float = 0
    queue: list[QueuedJob] = []
