"""What workers say, and what they are told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from dasl_core.spec import DatasetFacts
from service.checkpoints.schemas import FileEntry, FileName, Sha256, Size

Step = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Epoch = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SeriesName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Text = Annotated[str, StringConstraints(max_length=20_000)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


def _not_reserved(type: str) -> str:
    if type == "status":
        raise ValueError("'status' events are the service's own")
    return type


Figures = Annotated[dict[SeriesName, Any], Field(max_length=200)]


class WorkerRequest(BaseModel):
    """Base of what a worker says: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Heartbeat(WorkerRequest):
    """A sign of life, with what is known of the progress."""

    progress: Figures = {}


class HeartbeatAnswer(BaseModel):
    """What a person wants of the job."""

    desired: Literal["run", "pause", "cancel"]


class MetricPoint(WorkerRequest):
    """Values of some series at one step; `time` is in seconds since 1970."""

    step: Step
    time: Finite
    values: Annotated[dict[SeriesName, Finite], Field(min_length=1, max_length=200)]


class MetricBatch(WorkerRequest):
    """Points of several steps."""

    points: Annotated[list[MetricPoint], Field(max_length=5000, fail_fast=True)]


class EvaluationReport(WorkerRequest):
    """Figures of one subject on held-out images."""

    step: Step
    epoch: Epoch
    subject: Literal["raw", "untrained", "backbone"]
    metrics: Figures


class EventReport(WorkerRequest):
    """Something worth knowing. `status` events are the service's own."""

    type: Annotated[
        str,
        StringConstraints(max_length=50, pattern=r"^[a-z][a-z0-9_.-]*$"),
        AfterValidator(_not_reserved),
    ]
    message: Text = ""
    data: dict[str, Any] = {}


class CheckpointReport(WorkerRequest):
    """A checkpoint that is written: it exists once this is answered."""

    step: Step
    epoch: Epoch
    uri: Uri
    files: Annotated[list[FileEntry], Field(min_length=1, max_length=10_000, fail_fast=True)]
    metrics: Figures = {}
    final: bool = False


class CheckpointAnswer(BaseModel):
    """The id by which people know the checkpoint."""

    id: str


class DamageReport(WorkerRequest):
    """The checkpoint to go on from is not what was registered."""

    checkpoint_id: Annotated[str, StringConstraints(max_length=40)]
    damage: Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class ArtifactReport(WorkerRequest):
    """A file that is written; the same name again replaces it."""

    name: FileName
    uri: Uri
    size: Size
    sha256: Sha256
    content_type: Annotated[
        str, StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+$")
    ] = "application/octet-stream"


class ErrorReport(BaseModel):
    """Why something failed; further keys are kept."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, StringConstraints(max_length=200)] = "error"
    message: Text


class FinishReport(WorkerRequest):
    """How the attempt ended."""

    outcome: Literal["succeeded", "failed", "cancelled", "paused"]
    error: ErrorReport | None = None
    retryable: bool = True
    repeatable: bool = False


class WorkerDataset(BaseModel):
    """A data set as a worker needs it."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    uri: str
    index_uri: str
    facts: dict[str, Any]


class Resume(BaseModel):
    """The checkpoint to go on from."""

    checkpoint_id: str
    uri: str
    files: list[FileEntry]
    step: int
    # Of another job, whose settings may be others.
    branch: bool


class AttemptStart(BaseModel):
    """All that an attempt needs."""

    spec: dict[str, Any]
    dataset: WorkerDataset
    evaluate_dataset: WorkerDataset | None
    resume: Resume | None
    artifacts_uri: str
    heartbeat_seconds: float
    # Folders outside of which nothing may be read; none: everything may.
    dataset_roots: list[str]


class IngestStart(BaseModel):
    """What an ingest run reads and where its index goes."""

    uri: str
    artifacts_uri: str
    dataset_roots: list[str]


class IngestReport(WorkerRequest):
    """How an ingest run ended."""

    state: Literal["ready", "failed"]
    facts: DatasetFacts | None = None
    report: dict[str, Any] | None = None
    index_uri: Uri | None = None
    error: ErrorReport | Text | None = None

    @model_validator(mode="after")
    def _complete(self) -> IngestReport:
        if self.state == "ready" and (self.facts is None or self.index_uri is None):
            raise ValueError("a data set that is ready has facts and an index_uri")
        return self
