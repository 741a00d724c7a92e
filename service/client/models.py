"""What the service answers, as typed records.

They are lenient on purpose: a newer server may add fields, which are kept (`model_extra`) and shown by
`--json`, and a field that an older server lacks takes its default.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

if TYPE_CHECKING:
    from service.client.datasets import Datasets
    from service.client.jobs import Jobs

TERMINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class Record(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="allow")


class Problem(Record):
    """Why a job, attempt or data set failed."""

    type: str = "error"
    message: str = ""
    log_tail: str | list[str] | None = None

    def log_lines(self) -> list[str]:
        """The last log lines that came with the error."""
        return self.log_tail.splitlines() if isinstance(self.log_tail, str) else self.log_tail or []


class Progress(Record):
    """How far a job is; figures that are not known yet are None. `eta_seconds` is time to go."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    images_per_second: float | None = None
    eta_seconds: float | None = None
    knn: float | None = None
    recall_at_1: float | None = None


class DatasetRef(Record):
    id: str
    name: str | None = None


class Job(Record):
    """A job as last seen. `wait`, `refresh`, `cancel`, ... ask the service; the record never changes."""

    id: str
    name: str = ""
    status: str
    desired: str = "run"
    start_checkpoint_id: str | None = None
    token_id: str | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    resolved: dict[str, Any] | None = None
    dataset: DatasetRef | None = None
    priority: int = 0
    tags: dict[str, str] = Field(default_factory=dict)
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int | None = None
    restarts: int = 0
    progress: Progress | None = None
    error: Problem | None = None

    _jobs: Jobs | None = PrivateAttr(default=None)

    @property
    def done(self) -> bool:
        """Whether the job has ended, one way or another."""
        return self.status in TERMINAL_STATUSES

    def refresh(self) -> Job:
        """The job as it is now."""
        return self._bound().get(self.id)

    def wait(self, timeout: float | None = None, poll: float = 1.0) -> Job:
        """Wait until the job has succeeded; see `Jobs.wait`."""
        return self._bound().wait(self.id, timeout=timeout, poll=poll)

    def cancel(self) -> Job:
        """Ask for the job to stop; it does so after its current step."""
        return self._bound().cancel(self.id)

    def pause(self) -> Job:
        """Ask for the job to give up its place; it is saved after its current step."""
        return self._bound().pause(self.id)

    def resume(self) -> Job:
        """Queue a paused job again; it goes on from where it was saved."""
        return self._bound().resume(self.id)

    def _bound(self) -> Jobs:
        if self._jobs is None:
            raise RuntimeError("this Job was not made by a Client")
        return self._jobs


class Event(Record):
    """One entry of a job's history; `seq` counts 1, 2, 3, ... within the job."""

    seq: int
    at: datetime | None = None
    type: str
    message: str = ""
    data: dict[str, Any] | None = None

    @property
    def ends_job(self) -> bool:
        """Whether this is the job's last event."""
        return self.type == "status" and (self.data or {}).get("to") in TERMINAL_STATUSES


class Metrics(Record):
    """Training figures by column: `values["loss"][i]` was measured at `step[i]`, at `time[i]`."""

    step: list[int] = Field(default_factory=list)
    time: list[Any] = Field(default_factory=list)
    values: dict[str, list[float | None]] = Field(default_factory=dict)


class Evaluation(Record):
    """Held-out metrics; `subject` says of what: raw pixels, the untrained or the trained backbone."""

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
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class Artifact(Record):
    name: str
    size: int | None = None
    sha256: str | None = None
    content_type: str | None = None


class Attempt(Record):
    """One try of a job; a job that was restarted has several."""

    number: int
    state: str = ""
    submission_id: str | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    heartbeat_at: datetime | None = None
    error: Problem | None = None


class Validation(Record):
    """A spec with every "auto" resolved, and what the run would take."""

    resolved: dict[str, Any] = Field(default_factory=dict)
    estimate: dict[str, Any] = Field(default_factory=dict)


class SkippedFile(Record):
    path: str
    reason: str


class IngestReport(Record):
    """What ingest found; `skipped` lists at most the first 1000 files."""

    num_images: int | None = None
    num_skipped: int = 0
    skipped: list[SkippedFile] = Field(default_factory=list)
    class_names: list[str] | None = None


class Dataset(Record):
    """A registered folder of images; `state` is pending, ingesting, ready or failed."""

    id: str
    name: str
    uri: str = ""
    state: str
    facts: dict[str, Any] | None = None
    report: IngestReport | None = None
    error: Problem | str | None = None
    created_at: datetime | None = None

    _datasets: Datasets | None = PrivateAttr(default=None)

    @property
    def done(self) -> bool:
        """Whether ingest has ended."""
        return self.state in {"ready", "failed"}

    @property
    def error_message(self) -> str:
        """Why ingest failed, or nothing."""
        return self.error.message if isinstance(self.error, Problem) else self.error or ""

    def wait(self, timeout: float | None = None, poll: float = 0.5) -> Dataset:
        """Wait until the data set is ready; see `Datasets.wait`."""
        if self._datasets is None:
            raise RuntimeError("this Dataset was not made by a Client")
        return self._datasets.wait(self.id, timeout=timeout, poll=poll)


class Token(Record):
    """An access token. `token`, the secret, is there only in the answer that creates it."""

    id: str
    name: str = ""
    scopes: list[str] = Field(default_factory=list)
    max_queued_jobs: int | None = None
    max_running_jobs: int | None = None
    max_gpus: int | None = None
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    token: str | None = None


class AuditEntry(Record):
    """A request that changed something, or was refused the right to (403)."""

    id: str
    at: datetime | None = None
    token_id: str = ""
    token_name: str | None = None
    method: str = ""
    path: str = ""
    status: int | None = None
    address: str | None = None


class Node(Record):
    """A machine of the cluster."""

    id: str = ""
    address: str = ""
    total_cpus: float = 0
    total_gpus: float = 0
    used_cpus: float = 0
    used_gpus: float = 0


class QueuedJob(Record):
    """A job that waits for room."""

    id: str
    name: str = ""
    priority: int = 0
    created_at: datetime | None = None
    waits_for: str | None = None
    reason: str = ""
    starts_by: datetime | None = None


class Cluster(Record):
    """What the dispatcher last saw, at `at` (None: nothing yet), and the queue by priority."""

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
    queued: int | None = None
    queue: list[QueuedJob] = Field(default_factory=list)
