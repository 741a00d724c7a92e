"""Messages between workers and the worker API, used by both sides.

Requests refuse unknown keys. Answers ignore them: a newer API may send more than a worker knows.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from dasl_core.spec import DatasetFacts, ResolvedJobSpec, ResolvedResources
from dasl_core.spec.fields import LONGEST_NAME
from dasl_core.spec.locations import ReadableFolders
from dasl_core.spec.source import SourceOptions
from dasl_core.vocabulary import (
    Desired,
    EmbeddingFormat,
    EmbeddingType,
    ExportFormat,
    FeatureKind,
    IngestPhase,
    ModelRunPhase,
    Outcome,
    Subject,
)
from service.wire.checkpoints import MAX_SIZE, FileEntry, FileName, Sha256, Size
from service.wire.model_runs import Finite, NeighborEntry

NODE_DIED = "node-died"
"""Error type of an attempt with a rank on a node that died."""

STORE_UNAVAILABLE = "store-unavailable"
"""Error type of an attempt that could not use the artifact store."""

TaskOutcome = Literal["succeeded", "failed"]

CONTACT_SHEET = "contact-sheet.jpg"
"""Name of the contact sheet, in the folder of the index."""

NO_ROOM = "no-room"
"""Error type of an attempt for whose ranks Ray had no room."""

Step = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Epoch = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SeriesName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Number = Annotated[int, Field(ge=-(2**63), le=2**63 - 1, strict=True)] | Finite
Metrics = Annotated[dict[SeriesName, Number], Field(max_length=200)]
_Word = Annotated[str, StringConstraints(max_length=200)]
Values = Annotated[dict[SeriesName, Number | _Word | Metrics | None], Field(max_length=200)]
Text = Annotated[str, StringConstraints(max_length=20_000)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1000)]

MAX_FILES = 10_000
"""Most files of a checkpoint."""

UNDELIVERED_EXIT_CODE = 75
"""Exit code of a driver whose run saved its state and ended because the API stayed unreachable, and of an ingest that
could not reach it."""


MAX_JSON = 100_000
"""Most characters of an event's data, and of what an error has beside its message."""


def _check_length(value: object) -> None:
    if (length := len(json.dumps(value))) > MAX_JSON:
        raise ValueError(f"has {length} characters of JSON; at most {MAX_JSON} are stored")


def _not_reserved(type: str) -> str:
    if type == "status":
        raise ValueError("'status' events are the service's own")
    return type


class WorkerRequest(BaseModel):
    """Base of requests: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class WorkerAnswer(BaseModel):
    """Base of answers: unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


class Heartbeat(WorkerRequest):
    """A heartbeat, with the progress of rank 0 or the `IngestProgress` of an ingest."""

    progress: Values = {}


class IngestProgress(WorkerRequest):
    """Progress of an ingest or a task: images read and in total, within the current phase if there is one."""

    images_read: Size
    images_total: Size
    phase: IngestPhase | ModelRunPhase | None = None

    def reported(self) -> tuple[int, int, str | None]:
        """Return all fields, for comparison with the stored ones."""
        return self.images_read, self.images_total, self.phase


class HeartbeatAnswer(WorkerAnswer):
    """The desired status of the job."""

    desired: Desired


class MetricPoint(WorkerRequest):
    """Values of some series at one step; `time` is in seconds since 1970."""

    step: Step
    time: Finite
    values: Annotated[dict[SeriesName, Finite], Field(min_length=1, max_length=200)]


class MetricBatch(WorkerRequest):
    """Points of several steps."""

    points: Annotated[list[MetricPoint], Field(max_length=5000, fail_fast=True)]


class EvaluationReport(WorkerRequest):
    """Metrics of one subject on held-out images."""

    step: Step
    epoch: Epoch
    subject: Subject
    metrics: Metrics


class VerdictData(WorkerRequest):
    """Data of a `verdict` event: see `dasl_core.verdict`."""

    verdict: Annotated[str, StringConstraints(min_length=1, max_length=50)]
    message: Text
    metrics: Metrics


class NodeRanks(WorkerRequest):
    """The ranks on a node; `id` is the executor's."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    address: Annotated[str, StringConstraints(max_length=200)]
    ranks: Annotated[
        list[Annotated[int, Field(ge=0, lt=100_000)]], Field(min_length=1, max_length=100_000)
    ]


class PlacementData(WorkerRequest):
    """Data of a `placement` event: the node of each rank of an attempt, and that of its driver."""

    attempt: Annotated[int, Field(ge=1)]
    driver: Annotated[str | None, Field(max_length=200)] = None
    nodes: Annotated[list[NodeRanks], Field(min_length=1, max_length=100_000)]


PLACEMENT = "placement"
_EVENT_DATA: dict[str, type[WorkerRequest]] = {"verdict": VerdictData, PLACEMENT: PlacementData}


class EventReport(WorkerRequest):
    """An entry of the job's history.

    Only the service adds `status` events. A `verdict` is stored as the job's, and admission uses a `placement`.
    """

    type: Annotated[
        str,
        StringConstraints(max_length=50, pattern=r"^[a-z][a-z0-9_.-]*$"),
        AfterValidator(_not_reserved),
    ]
    message: Text = ""
    data: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_data(self) -> EventReport:
        if (model := _EVENT_DATA.get(self.type)) is not None:
            model.model_validate(self.data)
        else:
            _check_length(self.data)
        return self


class CheckpointReport(WorkerRequest):
    """A written checkpoint; registered once this request is answered."""

    step: Step
    epoch: Epoch
    uri: Uri
    files: Annotated[list[FileEntry], Field(min_length=1, max_length=MAX_FILES, fail_fast=True)]
    metrics: Metrics = {}
    final: bool = False

    @model_validator(mode="after")
    def _check_size(self) -> CheckpointReport:
        if (size := sum(file.size for file in self.files)) > MAX_SIZE:
            raise ValueError(f"its files have {size} bytes together; at most {MAX_SIZE} are stored")
        return self


class CheckpointManifest(BaseModel):
    """The manifest in a checkpoint's folder, from which it is registered if its report is lost."""

    model_config = ConfigDict(extra="ignore")

    job: str
    attempt: int
    step: Step
    epoch: Epoch
    final: bool
    metrics: Metrics
    size: Annotated[dict[FileName, Size], Field(min_length=1, max_length=MAX_FILES)]
    sha256: Annotated[dict[FileName, Sha256], Field(max_length=MAX_FILES)]

    @model_validator(mode="after")
    def _same_files(self) -> CheckpointManifest:
        if self.size.keys() != self.sha256.keys():
            raise ValueError("size and sha256 name different files")
        return self

    def report(self, uri: str) -> CheckpointReport:
        """Return the report of the checkpoint in this folder."""
        files = [
            FileEntry(name=name, size=size, sha256=self.sha256[name])
            for name, size in self.size.items()
        ]
        return CheckpointReport(
            step=self.step,
            epoch=self.epoch,
            uri=uri,
            files=files,
            metrics=self.metrics,
            final=self.final,
        )


class CheckpointAnswer(WorkerAnswer):
    """The id of a registered checkpoint."""

    id: str


class DamageReport(WorkerRequest):
    """The checkpoint to resume from differs from its manifest."""

    checkpoint_id: Annotated[str, StringConstraints(max_length=40)]
    damage: Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class ArtifactReport(WorkerRequest):
    """A written file; it replaces a file of the same name."""

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

    @model_validator(mode="after")
    def _check_length(self) -> ErrorReport:
        _check_length(self.model_extra)
        return self


class FinishReport(WorkerRequest):
    """How an attempt ended.

    A failure that is not `retryable` fails the job immediately. A `repeatable` one fails the job if it occurs twice
    in a row without a step in between.
    """

    outcome: Outcome
    error: ErrorReport | None = None
    retryable: bool = True
    repeatable: bool = False


class TaskReport(WorkerRequest):
    """Base of reports on how a run ended that is no attempt."""

    state: TaskOutcome
    error: ErrorReport | None = None


class WorkerDataset(WorkerAnswer):
    """A data set to read: images below `uri`, their index at `index_uri`.

    Attributes:
        upload_folder: folder of its uploaded file, the only folder that it is read from; None: it was not uploaded.
    """

    id: str
    name: str
    uri: str
    version: int
    index_uri: str
    facts: dict[str, Any]
    upload_folder: str | None = None


class Resume(WorkerAnswer):
    """The checkpoint to resume from.

    Attributes:
        branch: whether the checkpoint belongs to another job, whose settings may differ.
    """

    checkpoint_id: str
    uri: str
    files: list[FileEntry]
    step: int
    branch: bool


class ReadableAnswer(WorkerAnswer):
    """Base of answers with the folders that images and weights may be read from.

    Attributes:
        dataset_roots: the only folders that may be read from; empty: no restriction.
        excluded_folders: folders that may not be read from, except for roots inside them.
        dataset_uris: prefixes of object stores that may be read from; None: no restriction.
        excluded_uris: prefixes that may never be read from.
    """

    dataset_roots: list[str]
    excluded_folders: list[str] = []
    dataset_uris: list[str] | None = None
    excluded_uris: list[str] = []

    def readable(self) -> ReadableFolders:
        """Return the folders that images and weights may be read from."""
        return ReadableFolders(
            self.dataset_roots,
            self.excluded_folders,
            uris=self.dataset_uris,
            excluded_uris=self.excluded_uris,
        )


def readable_fields(readable: ReadableFolders) -> dict[str, Any]:
    """Return the fields of a `ReadableAnswer`."""
    return {
        "dataset_roots": [str(root) for root in readable.roots],
        "excluded_folders": [str(folder) for folder in readable.excluded],
        "dataset_uris": None if readable.uris is None else list(readable.uris),
        "excluded_uris": list(readable.excluded_uris),
    }


class AttemptStart(ReadableAnswer):
    """The settings of an attempt.

    Attributes:
        excluded_nodes: ids of the nodes that get no rank.
        tracking_hosts: the only hosts whose trackers may be contacted; None: any.
    """

    spec: dict[str, Any]
    dataset: WorkerDataset
    evaluate_dataset: WorkerDataset | None
    resume: Resume | None
    artifacts_uri: str
    heartbeat_seconds: float
    excluded_nodes: list[str] = []
    tracking_hosts: list[str] | None = None

    def job_spec(self) -> ResolvedJobSpec:
        """Return the validated spec, with the version of the data set for the model card."""
        spec = ResolvedJobSpec.model_validate(self.spec)
        named = f"{self.dataset.name}@{self.dataset.version}"
        is_told = self.dataset.version is not None and len(named) <= LONGEST_NAME
        if not is_told or named == spec.evaluate.dataset:
            return spec
        return spec.model_copy(update={"dataset": named})

    def resources(self) -> ResolvedResources:
        """Return the resources of the spec, without "auto"."""
        return ResolvedResources.model_validate(self.spec["resources"])


class IngestStart(ReadableAnswer):
    """The images of an ingest run, and the folder for its index.

    Attributes:
        previous_index_uri: in a refresh, the index of the newest version. A run without changes reports it again.
    """

    uri: str
    source: SourceOptions = Field(default_factory=SourceOptions)
    artifacts_uri: str
    previous_index_uri: str | None = None
    heartbeat_seconds: float = 2.0


class IngestReport(TaskReport):
    """How an ingest run ended."""

    facts: DatasetFacts | None = None
    report: dict[str, Any] | None = None
    index_uri: Uri | None = None

    @model_validator(mode="after")
    def _complete(self) -> IngestReport:
        if self.state == "succeeded" and (self.facts is None or self.index_uri is None):
            raise ValueError("an ingest that succeeded has facts and an index_uri")
        return self


class TaskStart(ReadableAnswer):
    """The data set of a task, and the folders that its run may read from."""

    dataset: WorkerDataset


class PreviewStart(TaskStart):
    """The settings of a preview run, and the folder for its files."""

    spec: dict[str, Any]
    images: int
    dataset_version: int
    artifacts_uri: str

    def job_spec(self) -> ResolvedJobSpec:
        """Return the validated spec."""
        return ResolvedJobSpec.model_validate(self.spec)


class PreviewReport(TaskReport):
    """How a preview run ended: its files are in the folder `uri`."""

    uri: Uri | None = None
    files: Annotated[list[FileEntry], Field(max_length=MAX_FILES, fail_fast=True)] = []

    @model_validator(mode="after")
    def _complete(self) -> PreviewReport:
        if self.state == "succeeded" and (self.uri is None or not self.files):
            raise ValueError("a preview that succeeded has a uri and files")
        return self


class PreparationStart(TaskStart):
    """The settings of a preparation."""

    image_size: int
    channels: int
    image_cache: Literal["exact", "jpeg"]
    heartbeat_seconds: float = 2.0


class PreparationResult(WorkerRequest):
    """The result of a preparation in the cache.

    Attributes:
        cached: number of the `images` that jobs need not decode.
        form: "raw", or the coding of shards: "lossless" or "jpeg".
        bytes: size in the cache of the node.
        shared: whether all nodes have the images, through `DASL_SHARDS_URI`.
        not_cached: why some images are decoded in every epoch; None if all are cached.
    """

    images: Size
    cached: Size
    form: Annotated[str, StringConstraints(max_length=20)]
    bytes: Size
    shared: bool
    unreadable: Size
    not_cached: Text | None = None


class PreparationReport(TaskReport):
    """How a preparation ended."""

    result: PreparationResult | None = None

    @model_validator(mode="after")
    def _complete(self) -> PreparationReport:
        if self.state == "succeeded" and self.result is None:
            raise ValueError("a preparation that succeeded has a result")
        return self


ModelRunKind = Literal["evaluation", "embedding", "export"]


class EmbeddingSettings(BaseModel):
    """Features and file format of an embedding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: FeatureKind = "pooled"
    format: EmbeddingFormat = "parquet"
    normalize: Annotated[bool, Field(strict=True)] = False
    dtype: EmbeddingType = "float32"


class ExportSettings(BaseModel):
    """The format of an export."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: ExportFormat


class StoredFolder(WorkerAnswer):
    """Files in a folder of the artifact store."""

    uri: str
    files: list[FileEntry]


class ModelRunStart(ReadableAnswer):
    """The settings of a run of a finished model, and the folder for its files.

    Attributes:
        dataset: the data set; None: the run reads no images.
        settings: by kind, the fields of `ResolvedEvaluate`, `EmbeddingSettings` or `ExportSettings`.
        gpu_is_free: whether a node has an unused GPU.
    """

    kind: ModelRunKind
    settings: dict[str, Any]
    checkpoint: StoredFolder
    dataset: WorkerDataset | None = None
    artifacts_uri: str
    gpu_is_free: bool = False
    heartbeat_seconds: float = 2.0


class ModelRunReport(TaskReport):
    """How a run of a finished model ended; its files, if any, are in the folder `uri`."""

    result: dict[str, Any] | None = None
    uri: Uri | None = None
    files: Annotated[list[FileEntry], Field(max_length=MAX_FILES, fail_fast=True)] = []

    @model_validator(mode="after")
    def _complete(self) -> ModelRunReport:
        if self.state == "succeeded" and self.result is None:
            raise ValueError("a model run that succeeded has a result")
        if self.files and self.uri is None:
            raise ValueError("files are in a folder: uri is missing")
        return self


class SearchStart(WorkerAnswer):
    """The embedding to search, and the checkpoint that embeds the images of queries.

    Attributes:
        facts: facts about the data set of the embedding.
    """

    embedding: StoredFolder
    settings: EmbeddingSettings
    checkpoint: StoredFolder
    facts: dict[str, Any]


class QueryAnswer(WorkerRequest):
    """The neighbors for a query, or the reason why there are none."""

    id: Annotated[str, StringConstraints(max_length=40)]
    neighbors: Annotated[list[NeighborEntry], Field(max_length=1000)] = []
    problem: Text | None = None


class QueryAnswers(WorkerRequest):
    """Answers to queries; the answer has the next queries."""

    answers: Annotated[list[QueryAnswer], Field(max_length=100)] = []


class Query(WorkerAnswer):
    """A query for the `k` images nearest to an image of the embedding or to an image file (in Base64)."""

    id: str
    key: str | None = None
    image: str | None = None
    k: int


class Queries(WorkerAnswer):
    """The next queries; empty after some seconds without any. `stop`: no query has arrived for minutes."""

    queries: list[Query]
    stop: bool = False


class SearchReport(TaskReport):
    """How a search ended."""
