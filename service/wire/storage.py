"""The storage report."""

from __future__ import annotations

from datetime import datetime

from service.wire.base import Answer


class StoredFiles(Answer):
    """Number and bytes of stored files."""

    count: int
    bytes: int


class StoredLogs(Answer):
    """Attempts whose logs are stored. Their sizes are not recorded; `max_bytes` limits each."""

    count: int
    max_bytes: int


class MetricRows(Answer):
    """Number of metric values; `more` if there are more than were counted."""

    count: int
    more: bool


class LargeJob(Answer):
    """A job that takes much space."""

    id: str
    name: str
    status: str
    finished_at: datetime | None
    bytes: int


class TenantBytes(Answer):
    """What the checkpoints, artifacts, previews and model runs of a tenant take, and its uploads."""

    tenant: str
    bytes: int
    uploads: int = 0


class Store(Answer):
    """The artifact store; total and free bytes are of its disk, null if it is remote.

    `bytes` are those of `tenants`, without uploads: all of them for an operator, else the caller's own.
    """

    bytes: int
    tenants: list[TenantBytes]
    max_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None


class StorageView(Answer):
    """What the jobs, previews, model runs and uploads of a tenant take, without what is about to be removed."""

    checkpoints: StoredFiles
    artifacts: StoredFiles
    logs: StoredLogs
    metrics: MetricRows
    datasets: int
    uploads: StoredFiles
    previews: StoredFiles
    model_runs: StoredFiles
    """Embeddings and exports."""
    deleted_jobs: int
    """Deleted jobs whose files and rows are not removed yet."""
    largest_jobs: list[LargeJob]
    store: Store
