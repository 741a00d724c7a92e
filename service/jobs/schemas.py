"""Request and response models of jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)

from dasl_core.spec import JobSpec, SpecError, field_problems
from dasl_core.spec.base import problem
from dasl_core.spec.fields import Name, Tag
from service.cluster.schemas import QueuedJob
from service.db.models import Event, Job
from service.events.levels import Level, level_of
from service.jobs.estimates import JobEstimate
from service.scheduling.automatic import with_numbers


def _explain(value: Any, validate: Callable[[Any], JobSpec]) -> JobSpec:
    try:
        return validate(value)
    except ValidationError as error:
        # `dasl_core.spec` writes the messages about specs.
        raise SpecError(field_problems(error, JobSpec)) from error


SpecBody = Annotated[JobSpec, WrapValidator(_explain)]


class CloneRequest(BaseModel):
    """How a clone differs from its job."""

    model_config = ConfigDict(extra="forbid")

    changes: Annotated[
        dict[str, Any], Field(description="Fields of the spec to change, nested as in a spec.")
    ] = {}
    checkpoint: Annotated[
        str | None,
        Field(
            max_length=40,
            description='Id to start from; "newest"; "best" by `checkpoints.best_by`; null starts from scratch.',
        ),
    ] = "newest"


class ResourcesPatch(BaseModel):
    """Changes to the resources of a submitted job."""

    model_config = ConfigDict(extra="forbid")

    max_hours: Annotated[float | None, Field(gt=0, le=100_000)] = None
    workers: Annotated[
        int | None, Field(ge=1, le=4096, description="Of a job that is paused or queued.")
    ] = None

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if self.max_hours is None and self.workers is None:
            raise problem("names no change", "{}", "max_hours, workers or both")
        return self


class JobPatch(BaseModel):
    """Changes to a submitted job."""

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    tags: Annotated[dict[Tag, Tag], Field(max_length=50)] = {}
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    resources: ResourcesPatch = ResourcesPatch(max_hours=24)


class DatasetReference(BaseModel):
    """The data set of a job."""

    id: str
    name: str


class ExperimentPlace(BaseModel):
    """The experiment of a job, and its place there."""

    id: str
    variant: str
    seed: int


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# A row that was changed by hand must not make a list of jobs fail.
StoredSpec = Annotated[dict[str, Any], BeforeValidator(_object)]


class JobView(BaseModel):
    """A job: `status` is the observed state, `desired` the requested one."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    status: str
    desired: str
    spec: StoredSpec
    resolved: StoredSpec
    dataset: DatasetReference
    dataset_version: int
    """The version of the data set that it runs on in all attempts."""
    evaluate_dataset_version: int | None
    """Likewise of `evaluate.dataset`; null if there is none."""
    priority: int
    max_hours: float | None
    """The time limit, if it was changed after the submission: it replaces `resources.max_hours`."""
    workers: int | None
    """The number of ranks, if it was changed after the submission: it replaces `resources.workers`."""
    tags: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    restarts: int
    progress: dict[str, Any] | None
    error: dict[str, Any] | None
    verdict: dict[str, Any] | None
    """After the last evaluation: `verdict` in one word, `message` in a sentence, `metrics` that decided it."""
    logs_removed_at: datetime | None
    metrics_removed_at: datetime | None
    artifacts_removed_at: datetime | None
    """When retention removed its logs, its metrics, or its artifacts and older checkpoints."""
    start_checkpoint_id: str | None
    token_id: str | None
    """The token that submitted the job, whose quotas it uses."""
    submitted_by: str | None
    """The name of that token's user, else of the token; null: it was removed."""
    experiment: ExperimentPlace | None
    """Null: it was submitted alone."""

    @classmethod
    def of(cls, job: Job, dataset_name: str) -> Self:
        """Build the view of a row."""
        built = ("dataset", "experiment")
        fields = {name: getattr(job, name) for name in JobView.model_fields if name not in built}
        fields["experiment"] = _place(job)
        fields["resolved"] = with_numbers(job.resolved, job.cpus_per_worker, job.gpus_per_worker)
        return cls(dataset=DatasetReference(id=job.dataset_id, name=dataset_name), **fields)


def _place(job: Job) -> ExperimentPlace | None:
    if job.experiment_id is None or job.variant is None or job.seed is None:
        return None
    return ExperimentPlace(id=job.experiment_id, variant=job.variant, seed=job.seed)


class JobSummary(BaseModel):
    """A job in a list with `summary=true`: without specs, logs and lists."""

    id: str
    name: str
    status: str
    desired: str
    method: str
    backbone: str | None
    dataset: DatasetReference
    dataset_version: int
    priority: int
    tags: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    restarts: int
    progress: dict[str, Any] | None
    error: dict[str, Any] | None
    """Its `type` and `message`."""
    verdict: dict[str, Any] | None
    """Its `verdict` and `message`."""
    best: dict[str, float]
    """The greatest `knn_top1` and `recall_at_1` of the evaluations of the trained network."""
    waits_for: str | None
    """Of a queued job, as in `GET /v1/cluster`."""
    reason: str
    """Why a queued job waits."""
    start_checkpoint_id: str | None
    experiment: ExperimentPlace | None
    token_id: str | None
    submitted_by: str | None

    @classmethod
    def of(
        cls, job: Job, dataset_name: str, best: dict[str, float], queued: QueuedJob | None
    ) -> Self:
        """Build the summary of a row."""
        own = (cls.model_fields.keys() & set(Job.__table__.columns.keys())) - {"error", "verdict"}
        return cls(
            **{name: getattr(job, name) for name in own},
            backbone=_backbone(job.resolved),
            dataset=DatasetReference(id=job.dataset_id, name=dataset_name),
            error=_only(job.error, "type", "message"),
            verdict=_only(job.verdict, "verdict", "message"),
            best=best,
            submitted_by=job.submitted_by,
            experiment=_place(job),
            waits_for=queued and queued.waits_for,
            reason=queued.reason if queued else "",
        )


def _backbone(resolved: object) -> str | None:
    backbone = _object(_object(resolved).get("backbone"))
    return str(backbone["name"]) if "name" in backbone else None


def _only(document: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return None if document is None else {name: document.get(name) for name in names}


class SubmittedJob(JobView):
    """A job that was just submitted."""

    estimate: JobEstimate | None = None
    warnings: list[str] = []
    """Sentences on what may surprise, such as a job that must wait for nodes."""


class ValidatedJob(BaseModel):
    """A resolved spec and its estimated cost."""

    resolved: dict[str, Any]
    estimate: JobEstimate
    warnings: list[str] = []
    """As in the answer to a submission."""


class AttemptView(BaseModel):
    """An attempt: one run of a job."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    state: str
    created_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime | None
    resume_checkpoint_id: str | None
    workers: int | None
    """Number of its ranks; null: unknown, of an earlier version."""
    stop_reason: str | None
    """Why the service itself requested that the attempt saves a checkpoint and stops."""
    error: dict[str, Any] | None


class EvaluationView(BaseModel):
    """Metrics of one subject at one step.

    The subjects are `raw` pixels, the `untrained` backbone or the `start` weights, the trained `backbone`, and the `embedding` of a
    supervised method.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    attempt: int
    step: int
    epoch: float
    subject: str
    metrics: dict[str, Any]
    created_at: datetime


class EventView(BaseModel):
    """An event of a job; `seq` counts 1, 2, 3, ... within the job.

    An event of type `status` is a change of status, with `from`, `to` and `attempt` in its data.
    """

    seq: int
    at: datetime
    type: str
    level: Level
    message: str
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> Self:
        """Build the view of a row."""
        fields = {name: getattr(event, name) for name in ("seq", "at", "type", "message", "data")}
        return cls(level=level_of(event.type, event.data), **fields)


class EventPage(BaseModel):
    """Events in order; `next` is the `after` of the next request."""

    data: list[EventView]
    has_more: bool
    next: int


class MetricColumns(BaseModel):
    """Metrics over common steps; null where a series has no value at a step."""

    step: list[int]
    time: list[float]
    values: dict[str, list[float | None]]


class JobMetricColumns(MetricColumns):
    """Metrics of one of several jobs."""

    job_id: str


class JobsMetrics(BaseModel):
    """Metrics of several jobs, in the order of the request."""

    data: list[JobMetricColumns]
