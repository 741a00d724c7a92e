"""Typed records of the API's answers.

They are lenient: fields added by a newer server are kept (`model_extra`) and shown by `--json`; fields
that an older server lacks take their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.states import TERMINAL, DatasetState, JobStatus, TaskState

_MAX_HOURS = "max-hours"


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(extra="allow")


class Problem(Record):
    """Error of a job, attempt or data set."""

    type: str = "error"
    message: str = ""
    log_tail: str | list[str] | None = None

    def log_lines(self) -> list[str]:
        """Return the last log lines before the error."""
        return self.log_tail.splitlines() if isinstance(self.log_tail, str) else self.log_tail or []

    @property
    def is_explained(self) -> bool:
        """Whether the message alone says what to change: an invalid setting or data set, a time limit."""
        return self.type in ("ValueError", _MAX_HOURS)


class Progress(Record):
    """Progress of a job or an ingest; None means not known yet. `eta_seconds` is the estimated time left.

    `images_read` of `images_total` are in the image cache while that is built, before the first step. Of an ingest, they
    are those of its `phase` ("listing", "headers", "sample" or "comparison"), as is the estimated `seconds_left`. `times`
    has the share of the time of each activity of a training. Older workers send neither phase nor times.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    images_per_second: float | None = None
    eta_seconds: float | None = None
    knn: float | None = None
    recall_at_1: float | None = None
    images_read: int | None = None
    images_total: int | None = None
    phase: str | None = None
    times: dict[str, float] | None = None
    seconds_left: float | None = None


class Verdict(Record):
    """Verdict on a finished training: in one word, in a sentence, and the metrics that decided it."""

    verdict: str
    message: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)


class DatasetRef(Record):
    id: str
    name: str | None = None


class ExperimentPlace(Record):
    """The experiment of a job, and its place there."""

    id: str
    variant: str = ""
    seed: int | None = None


class JobRecord(Record):
    """Snapshot of a job.

    Only the answer to a submission has an `estimate` and `warnings`, such as that it must wait for nodes.
    """

    id: str
    name: str = ""
    status: str
    desired: str = "run"
    start_checkpoint_id: str | None = None
    token_id: str | None = None
    submitted_by: str | None = None
    experiment: ExperimentPlace | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    resolved: dict[str, Any] | None = None
    dataset: DatasetRef | None = None
    dataset_version: int | None = None
    evaluate_dataset_version: int | None = None
    priority: int = 0
    max_hours: float | None = None
    workers: int | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    logs_removed_at: datetime | None = None
    metrics_removed_at: datetime | None = None
    artifacts_removed_at: datetime | None = None
    attempt: int | None = None
    restarts: int = 0
    progress: Progress | None = None
    error: Problem | None = None
    verdict: Verdict | None = None
    estimate: dict[str, Any] | None = None
    warnings: list[str] = Field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the job has ended: succeeded, failed or cancelled."""
        return self.status in TERMINAL

    @property
    def is_at_time_limit(self) -> bool:
        """Whether the job is paused because it ran for its time limit."""
        error = self.error
        return self.status == JobStatus.PAUSED and error is not None and error.type == _MAX_HOURS


@dataclass(frozen=True)
class ServerSentEvent:
    """One message of a live stream. `id` is the last id in the stream so far, "" if there was none."""

    id: str
    event: str
    data: str


class Event(Record):
    """One event of a job; `seq` counts 1, 2, 3, ... within the job."""

    seq: int
    at: datetime | None = None
    type: str
    level: str = "info"
    message: str = ""
    data: dict[str, Any] | None = None

    @property
    def ends_job(self) -> bool:
        """Whether this is the job's last event."""
        return self.type == "status" and (self.data or {}).get("to") in TERMINAL


class TenantEvent(Event):
    """An event of one of the tenant's jobs; `id` orders those of all jobs."""

    id: int
    job_id: str
    job_name: str = ""


class Metrics(Record):
    """Training metrics as columns: `values["loss"][i]` was measured at `step[i]`, at `time[i]`."""

    step: list[int] = Field(default_factory=list)
    time: list[Any] = Field(default_factory=list)
    values: dict[str, list[float | None]] = Field(default_factory=dict)


class Evaluation(Record):
    """Metrics on held-out images; `subject` is `raw`, `untrained`, `start`, `backbone` or `embedding`."""

    step: int = 0
    epoch: float | None = None
    subject: str = "backbone"
    attempt: int | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)


class CheckpointFile(Record):
    name: str
    size: int
    sha256: str


class Checkpoint(Record):
    """A registered checkpoint and the manifest of its files."""

    id: str
    job_id: str = ""
    attempt: int | None = None
    step: int = 0
    epoch: float | None = None
    final: bool = False
    pinned: bool = False
    state: str | None = None
    files: list[CheckpointFile] = Field(default_factory=list)
    metrics: dict[str, Any] | None = None
    created_at: datetime | None = None

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files)


class ModelRun(Record):
    """An evaluation, an embedding or an export of a checkpoint. `state` is queued, running, succeeded or failed.

    `result` has the `metrics` of an evaluation by subject; of an embedding, the number of `images`, the `shape` of the
    features of each, and `images_per_second`.
    """

    id: str
    kind: str = ""
    checkpoint_id: str = ""
    dataset_id: str | None = None
    dataset_version: int | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    state: str
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    files: list[CheckpointFile] = Field(default_factory=list)
    size: int | None = None
    error: Problem | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.state in (TaskState.SUCCEEDED, TaskState.FAILED)


class Neighbor(Record):
    """An image near another one; `similarity` is the cosine of their features."""

    key: str
    label: str | None = None
    similarity: float


class Neighbors(Record):
    """The images of an embedding nearest to an image, the nearest first."""

    embedding_id: str
    dataset_id: str | None = None
    dataset_version: int | None = None
    neighbors: list[Neighbor] = Field(default_factory=list)


class Artifact(Record):
    name: str
    size: int | None = None
    sha256: str | None = None
    content_type: str | None = None


class Attempt(Record):
    """One execution of a job; a job that was restarted has several."""

    number: int
    state: str = ""
    submission_id: str | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    heartbeat_at: datetime | None = None
    workers: int | None = None
    stop_reason: str | None = None
    error: Problem | None = None


class Validation(Record):
    """A spec with every "auto" resolved, and estimates of the run."""

    resolved: dict[str, Any] = Field(default_factory=dict)
    estimate: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


class SkippedFile(Record):
    path: str
    reason: str


class IngestReport(Record):
    """Result of an ingest; `skipped` lists at most the first 1000 files.

    `warnings` are sentences on what training loses of the usable images. `ignored_endings` counts the files that are not
    named like images by their endings.
    """

    num_images: int | None = None
    num_skipped: int = 0
    num_ignored: int = 0
    ignored_endings: dict[str, int] = Field(default_factory=dict)
    skipped: list[SkippedFile] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    class_names: list[str] | None = None
    pixels: dict[str, Any] = Field(default_factory=dict)
    changes: dict[str, int] | None = None


class DatasetVersion(Record):
    """A version of a data set; `changes` counts the images that differ from the version before."""

    number: int
    created_at: datetime | None = None
    facts: dict[str, Any] | None = None
    changes: dict[str, int] | None = None
    removed: bool = False


class Refresh(Record):
    """A refresh that is pending, ingesting or failed."""

    state: str
    error: Problem | None = None
    requested_at: datetime | None = None


class DatasetRecord(Record):
    """Registered images. `state` is uploading, pending, ingesting, ready or failed.

    `upload` has `size` and `received` of an uploaded file, in bytes.

    One that is ready stays so, with its newest version, while it is refreshed; `refresh` is None otherwise.
    """

    id: str
    name: str
    uri: str = ""
    source: dict[str, Any] | None = None
    state: str
    version: int | None = None
    refresh: Refresh | None = None
    facts: dict[str, Any] | None = None
    report: IngestReport | None = None
    progress: Progress | None = None
    upload: dict[str, Any] | None = None
    error: Problem | str | None = None
    created_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether the first ingest has ended."""
        return self.state in (DatasetState.READY, DatasetState.FAILED)

    @property
    def is_refreshed(self) -> bool:
        """Whether no ingest waits or runs."""
        return self.done and (self.refresh is None or self.refresh.state == DatasetState.FAILED)

    @property
    def error_message(self) -> str:
        """Why the ingest, or the last refresh, failed; empty if it did not."""
        error = self.error
        if error is None and self.refresh is not None:
            error = self.refresh.error
        return error.message if isinstance(error, Problem) else error or ""


class PreviewFile(Record):
    """A file of a preview."""

    name: str
    size: int
    sha256: str
    content_type: str = "application/octet-stream"


class Preview(Record):
    """Views of a data set as a spec draws them. `state` is queued, running, succeeded or failed.

    A list of previews has neither their specs nor their files.
    """

    id: str
    dataset_id: str
    dataset_version: int | None = None
    state: str
    images: int = 0
    size: int | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    resolved: dict[str, Any] = Field(default_factory=dict)
    files: list[PreviewFile] = Field(default_factory=list)
    error: Problem | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether it is drawn, or has failed."""
        return self.state in (TaskState.SUCCEEDED, TaskState.FAILED)


class Preparation(Record):
    """Decoding of a data set before a job needs it. `state` is queued, running, succeeded or failed.

    `result` says how many images are `cached`, of `images`, in which `form`, and whether they are `shared` with all nodes.
    """

    id: str
    dataset_id: str
    dataset_version: int | None = None
    image_size: int | None = None
    channels: int | None = None
    image_cache: str | None = None
    state: str
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: Problem | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.state in (TaskState.SUCCEEDED, TaskState.FAILED)


class Token(Record):
    """An access token. Its secret, `token`, is set only in the answer that creates it."""

    id: str
    tenant: str = ""
    name: str = ""
    user_id: str | None = None
    scopes: list[str] = Field(default_factory=list)
    max_queued_jobs: int | None = None
    max_running_jobs: int | None = None
    max_gpus: int | None = None
    max_pending_datasets: int | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    token: str | None = None


class Tenant(Record):
    """A tenant: its share of the cluster and its limits; None means no limit."""

    name: str
    weight: float = 1.0
    max_queued_jobs: int | None = None
    max_running_jobs: int | None = None
    max_gpus: int | None = None
    max_priority: int | None = None
    max_hours: float | None = None
    created_at: datetime | None = None
    disabled_at: datetime | None = None


class User(Record):
    """A user of a tenant. `role` is the highest scope of its tokens."""

    id: str
    name: str = ""
    email: str | None = None
    role: str = ""
    issuer: str | None = None
    subject: str | None = None
    created_at: datetime | None = None
    last_login_at: datetime | None = None
    disabled_at: datetime | None = None


class StartedLogin(Record):
    """A login that was started: the page to open, and what finishes it."""

    authorization_url: str
    state: str = Field(repr=False)
    secret: str = Field(repr=False)
    expires_at: datetime | None = None


class AuditEntry(Record):
    """A request that changed something, or was refused for lack of a scope (403)."""

    id: str
    at: datetime | None = None
    token_id: str = ""
    token_name: str | None = None
    user_id: str | None = None
    method: str = ""
    path: str = ""
    status: int | None = None
    address: str | None = None


class UsageGroup(Record):
    """GPU- and CPU-hours of the jobs of a user or token, or with a value of a tag (None: without one)."""

    value: str | None = None
    name: str | None = None
    jobs: int = 0
    gpu_hours: float = 0
    cpu_hours: float = 0


class Usage(Record):
    """Use of the cluster between two times, in whole hours, most first."""

    start: datetime | None = None
    end: datetime | None = None
    group_by: str = "token"
    data: list[UsageGroup] = Field(default_factory=list)
    is_complete: bool = True


class Node(Record):
    """A node of the cluster."""

    id: str = ""
    address: str = ""
    total_cpus: float = 0
    total_gpus: float = 0
    used_cpus: float = 0
    used_gpus: float = 0
    name: str = ""
    gpu_type: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    drained: bool = False


class QueuedJob(Record):
    """A queued job and what it waits for."""

    id: str
    name: str = ""
    priority: int = 0
    created_at: datetime | None = None
    waits_for: str | None = None
    reason: str = ""
    starts_by: datetime | None = None


class Drain(Record):
    """A node that gets no new workers; `node` None is the whole cluster."""

    node: str | None = None
    save: bool = True
    reason: str = ""
    created_at: datetime


class Cluster(Record):
    """The cluster as the dispatcher saw it at `at` (None: not yet), and the queue in its order."""

    at: datetime | None = None
    alive: bool = False
    nodes: list[Node] = Field(default_factory=list)
    total_cpus: float = 0
    total_gpus: float = 0
    allocated_cpus: float | None = None
    allocated_gpus: float | None = None
    used_cpus: float = 0
    used_gpus: float = 0
    free_cpus: float = 0
    free_gpus: float = 0
    api_started_at: datetime | None = None
    dispatcher_started_at: datetime | None = None
    ray_version: str | None = None
    ray_tested: bool | None = None
    queued: int | None = None
    queue: list[QueuedJob] = Field(default_factory=list)
    drains: list[Drain] = Field(default_factory=list)


class StoredFiles(Record):
    """Number and bytes of stored files."""

    count: int = 0
    bytes: int = 0


class LargeJob(Record):
    """A job that takes much space."""

    id: str
    name: str = ""
    status: str = ""
    finished_at: datetime | None = None
    bytes: int = 0


class DeletedCheckpoints(Record):
    """How many checkpoints of a job were deleted, and the bytes that their files took."""

    deleted: int
    bytes: int = 0


class TenantBytes(Record):
    """What the checkpoints, artifacts and previews of a tenant take, and its uploads."""

    tenant: str
    bytes: int = 0
    uploads: int = 0


class Store(Record):
    """The artifact store; total and free bytes are None if it is remote.

    `bytes` are those of `tenants`: all of them for an operator, else the caller's own.
    """

    bytes: int = 0
    tenants: list[TenantBytes] = Field(default_factory=list)
    max_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


class Storage(Record):
    """What the jobs, previews, model runs and uploads of a tenant take, without what is about to be removed."""

    checkpoints: StoredFiles
    artifacts: StoredFiles
    logs: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, Any] = Field(default_factory=dict)
    datasets: int = 0
    uploads: StoredFiles = StoredFiles()
    previews: StoredFiles = StoredFiles()
    model_runs: StoredFiles = StoredFiles()
    deleted_jobs: int = 0
    largest_jobs: list[LargeJob] = Field(default_factory=list)
    store: Store
