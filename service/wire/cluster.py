"""The cluster, its queue and its drains."""

from datetime import datetime
from typing import Literal

from service.wire.base import Answer, StoredObject

WaitsFor = Literal["machines", "quota", "room", "reserved-room", "store", "api", "head"]
"""Reason why a queued job waits."""


class QueuedJob(Answer):
    """A queued job and the reason why it waits."""

    id: str
    name: str
    priority: int
    created_at: datetime
    waits_for: WaitsFor | None = None
    """Null: it is about to start, or the state of the cluster is unknown."""
    reason: str = ""
    starts_by: datetime | None = None
    """The latest time at which its reserved resources are free."""


class DrainView(Answer):
    """A node that gets no new workers; `node` null is the whole cluster."""

    node: str | None
    save: bool
    reason: str
    created_at: datetime


class Drains(Answer):
    """All drains."""

    data: list[DrainView]


class ClusterView(Answer):
    """The dispatcher's last snapshot of the cluster; `at` is null before the first."""

    at: datetime | None = None
    alive: bool = False
    nodes: list[StoredObject] = []
    total_cpus: float = 0
    total_gpus: float = 0
    allocated_cpus: float = 0
    """Allocated to jobs: from the start of an attempt until its driver has ended, and while a job waits for
    a retry."""
    allocated_gpus: float = 0
    used_cpus: float = 0
    """In use by Ray, including other programs; some seconds older than the allocation."""
    used_gpus: float = 0
    free_cpus: float = 0
    """Neither allocated nor used; an upper bound."""
    free_gpus: float = 0
    api_started_at: datetime | None = None
    """Start of the API process that answers."""
    dispatcher_started_at: datetime | None = None
    ray_version: str | None = None
    ray_tested: bool | None = None
    """Whether DASL is tested with this version of Ray."""
    rest: Literal["idle", "starting"] | None = None
    """Set while a Ray that runs only for work does not run; `nodes` are then its last nodes."""
    queued: int = 0
    """Number of queued jobs; `queue` has the first 200."""
    queue: list[QueuedJob] = []
    drains: list[DrainView] = []
    """Only for tokens with the scope `admin`; `drained` of nodes is always visible."""
