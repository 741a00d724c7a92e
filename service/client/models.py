"""Records of the client: answers of `service.wire` with more types and methods."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.client.errors import DaslError
from service.states import TERMINAL, DatasetState, JobStatus, TaskState
from service.wire.cluster import ClusterView
from service.wire.datasets import DatasetView, RefreshView
from service.wire.experiments import ExperimentEstimate
from service.wire.jobs import AdviceView, AttemptView, JobView
from service.wire.model_runs import ModelRunView
from service.wire.preparations import PreparationView
from service.wire.previews import PreviewFile, PreviewView

_MAX_HOURS = "max-hours"
M = TypeVar("M", bound=BaseModel)


def read(model: type[M], answer: object) -> M:
    """Read an answer of the API; unknown fields of a newer server are kept in `model_extra`.

    Raises:
        DaslError: a field is missing or has another type.
    """
    try:
        return model.model_validate(answer, extra="allow")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or model.__name__
        raise DaslError(
            f"{field}: the server's answer cannot be read ({first['msg']}). Use a client of the server's version."
        ) from error


class Stored(BaseModel):
    """A stored JSON object that the API returns unchanged; all fields are kept."""

    model_config = ConfigDict(extra="allow")


class Problem(Stored):
    """Error of a job, attempt or data set."""

    type: str = "error"
    message: str = ""
    log_tail: str | list[str] | None = None

    def log_lines(self) -> list[str]:
        """Return the last log lines before the error."""
        return self.log_tail.splitlines() if isinstance(self.log_tail, str) else self.log_tail or []

    @property
    def is_explained(self) -> bool:
        """Whether the message suffices to fix the error: an invalid setting or data set, a time limit."""
        return self.type in ("ValueError", _MAX_HOURS)


class Progress(Stored):
    """Progress of a job or an ingest; None: not known yet. `eta_seconds` is the estimated remaining time.

    Before the first step of a job, `images_read` of `images_total` images are in the image cache. For an ingest, they and
    `seconds_left` refer to its `phase` ("listing", "headers", "sample" or "comparison"). `times` has the share of time of
    each activity of a training.
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


class Verdict(Stored):
    """Verdict on a finished training: a word, a sentence, and the metrics that decided it."""

    verdict: str
    message: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)


class Bound(BaseModel):
    """Record that has its client in a private attribute."""

    def __getstate__(self) -> dict[Any, Any]:
        """Return the state without the client, which cannot be pickled."""
        private = dict.fromkeys(self.__private_attributes__)
        return super().__getstate__() | {"__pydantic_private__": private}


class JobRecord(Bound, JobView):
    """Snapshot of a job.

    Only the answer to a submission has an `estimate` and `warnings`, for example that the job must wait for nodes.
    """

    progress: Progress | None
    error: Problem | None
    verdict: Verdict | None
    estimate: dict[str, Any] | None = None
    warnings: list[str] = Field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the job has ended: succeeded, failed or cancelled."""
        return self.status in TERMINAL

    @property
    def is_at_time_limit(self) -> bool:
        """Whether the job is paused because it reached its time limit."""
        error = self.error
        return self.status == JobStatus.PAUSED and error is not None and error.type == _MAX_HOURS


@dataclass(frozen=True)
class ServerSentEvent:
    """A message of a live stream. `id` is the last id in the stream so far, or ""."""

    id: str
    event: str
    data: str


class Attempt(AttemptView):
    """An execution of a job; a restarted job has several."""

    error: Problem | None


class Task(BaseModel):
    """A task of the cluster. `state` is queued, running, succeeded or failed."""

    id: str
    state: str
    error: Problem | None

    @property
    def done(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.state in (TaskState.SUCCEEDED, TaskState.FAILED)


class ModelRun(Task, ModelRunView):
    """An evaluation, an embedding or an export of a checkpoint."""

    progress: Progress | None


class Validation(BaseModel):
    """A spec with every "auto" resolved, estimates of the run, and advice on what the spec leaves open."""

    resolved: dict[str, Any]
    estimate: dict[str, Any]
    warnings: list[str]
    advice: list[AdviceView] = Field(default_factory=list)


class VariantPlan(BaseModel):
    """The spec of a variant, resolved with the first seed, and the estimated cost per job."""

    name: str
    resolved: dict[str, Any]
    estimate: dict[str, Any]


class ExperimentValidation(BaseModel):
    """The resolved specs of all variants, and their estimated cost."""

    variants: list[VariantPlan]
    estimate: ExperimentEstimate
    warnings: list[str]
    notes: list[str]


class SkippedFile(Stored):
    path: str
    reason: str


class IngestReport(Stored):
    """Result of an ingest; `skipped` lists at most the first 1000 files.

    `warnings` say what training loses of the usable images, and `unused` which labels, columns and files are not read, and
    why.
    """

    num_images: int | None = None
    num_skipped: int = 0
    skipped: list[SkippedFile] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    unused: list[str] = Field(default_factory=list)
    duplicates: dict[str, dict[str, Any]] = Field(default_factory=dict)
    class_names: list[str] | None = None
    pixels: dict[str, Any] = Field(default_factory=dict)
    changes: dict[str, int] | None = None


class Refresh(RefreshView):
    """A refresh that is pending, ingesting or failed."""

    error: Problem | None


class DatasetRecord(Bound, DatasetView):
    """Registered images. `state` is uploading, pending, ingesting, ready or failed.

    A ready data set stays ready, with its newest version, during a refresh. `refresh` is None if there is no refresh.
    `source` and `report` are None in a list.
    """

    refresh: Refresh | None
    source: dict[str, Any] | None = None
    report: IngestReport | None = None
    error: Problem | None
    progress: Progress | None

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
        """Why the ingest or the last refresh failed; empty if it did not."""
        error = self.error
        if error is None and self.refresh is not None:
            error = self.refresh.error
        return "" if error is None else error.message


class Preview(Task, PreviewView):
    """Views of a data set by a spec. Previews in a list have neither spec nor files."""

    spec: dict[str, Any] = Field(default_factory=dict)
    resolved: dict[str, Any] = Field(default_factory=dict)
    files: list[PreviewFile] = Field(default_factory=list)


class Preparation(Task, PreparationView):
    """Decoding of a data set before a job needs it.

    `result` has the number of `cached` images of `images`, their `form`, and whether they are `shared` with all nodes.
    """

    progress: Progress | None


class Node(Stored):
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


class Cluster(ClusterView):
    """The state of the cluster at the time `at` (None: not reported yet), and the queue in its order."""

    nodes: list[Node] = Field(default_factory=list)
