"""The cluster and its queue as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from service.scheduling.admission import WaitsFor


class QueuedJob(BaseModel):
    """A job that waits for room."""

    id: str
    name: str
    priority: int
    created_at: datetime
    waits_for: WaitsFor | None = None
    """Null: it starts at any moment, or nothing is known of the cluster."""
    reason: str = ""
    starts_by: datetime | None = None
    """When the room that is reserved for it is there at the latest."""


class ClusterView(BaseModel):
    """What the dispatcher last saw; `at` is null before it saw anything."""

    at: datetime | None = None
    alive: bool = False
    nodes: list[dict[str, Any]] = []
    total_cpus: float = 0
    total_gpus: float = 0
    allocated_cpus: float = 0
    """Of those, what is given to jobs: from the start of an attempt until its driver is gone, and while
    a job waits to be tried again."""
    allocated_gpus: float = 0
    used_cpus: float = 0
    """What Ray has placed workers on: some seconds later than given, and anybody's workers."""
    used_gpus: float = 0
    free_cpus: float = 0
    """At most so much is neither given to a job nor used."""
    free_gpus: float = 0
    queued: int = 0
    """How many jobs are queued; `queue` has the first 200."""
    queue: list[QueuedJob] = []
