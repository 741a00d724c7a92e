"""The storage report."""

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
    """Number of counted metric values; `more`: whether there are more."""

    count: int
    more: bool


class LargeJob(Answer):
    """A job with large files."""

    id: str
    name: str
    status: str
    finished_at: datetime | None
    bytes: int


class TenantBytes(Answer):
    """Bytes of a tenant's checkpoints, artifacts, previews and model runs, and of its uploads."""

    tenant: str
    bytes: int
    uploads: int = 0


class Store(Answer):
    """The artifact store; total and free bytes are its disk's, null if it is remote.

    `bytes` is the sum over `tenants`, without uploads: all tenants for an operator, otherwise the caller's.
    """

    bytes: int
    tenants: list[TenantBytes]
    max_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None


class StorageView(Answer):
    """Storage of a tenant's jobs, previews, model runs and uploads, without files that are about to be removed."""

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
