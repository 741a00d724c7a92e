"""Jobs, their attempts, evaluations and metrics."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

from service.wire.base import Answer, StoredObject
from service.wire.events import EventView


def as_object(value: object) -> dict[str, Any]:
    """Return a stored value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


# A manually changed row must not make a list of jobs fail.
StoredSpec = Annotated[dict[str, Any], BeforeValidator(as_object)]


class DatasetReference(Answer):
    """The data set of a job."""

    id: str
    name: str


class ExperimentPlace(Answer):
    """The experiment of a job, and the job's variant and seed."""

    id: str
    variant: str
    seed: int


class AdviceView(Answer):
    """Advice on what a spec leaves open, for its images and the cluster."""

    field: str
    """The field that it is about."""
    reason: str
    """Sentences for people."""
    settings: dict[str, int | float | str]
    """Settings that fit better, by dotted fields such as `augment.flip`; empty if none helps."""


class JobState(Answer):
    """What all answers about a job have in common."""

    id: str
    name: str
    status: str
    desired: str
    dataset: DatasetReference
    dataset_version: int
    """The version of the data set, the same for all attempts."""
    priority: int
    tags: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    restarts: int
    progress: StoredObject | None
    error: StoredObject | None
    verdict: StoredObject | None
    """After the last evaluation: `verdict` as a word, `message` as a sentence, `metrics` that decided it."""
    start_checkpoint_id: str | None
    token_id: str | None
    """The token that submitted the job, whose quotas it uses."""
    submitted_by: str | None
    """The name of that token's user, or of the token if it has no user; null: it was removed."""
    experiment: ExperimentPlace | None
    """Null: it belongs to no experiment."""


class JobView(JobState):
    """A job: `status` is the observed state, `desired` the requested one."""

    spec: StoredSpec
    resolved: StoredSpec
    evaluate_dataset_version: int | None
    """The version of `evaluate.dataset`; null without one."""
    max_hours: float | None
    """The time limit if it was changed after the submission; replaces `resources.max_hours`."""
    workers: int | None
    """The number of ranks if it was changed after the submission; replaces `resources.workers`."""
    logs_removed_at: datetime | None
    metrics_removed_at: datetime | None
    artifacts_removed_at: datetime | None
    """When retention removed its logs, its metrics, or its artifacts and older checkpoints."""
    expires_at: datetime | None
    """When retention by age removes a part of it, unless it is taken back; null: nothing is marked."""


class JobSummary(JobState):
    """A job in a list with `summary=true`: without specs, logs and lists.

    `error` has its `type` and `message`, and `verdict` its `verdict` and `message`.
    """

    method: str
    backbone: str | None
    best: dict[str, float]
    """The largest `knn_top1` and `recall_at_1` among the evaluations of the trained network."""
    waits_for: str | None
    """What a queued job waits for, as in `GET /v1/cluster`."""
    reason: str
    """Why a queued job waits."""


class AttemptView(Answer):
    """An attempt: one run of a job."""

    number: int
    state: str
    created_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime | None
    resume_checkpoint_id: str | None
    workers: int | None
    """Number of its ranks; null: the spec's number of workers."""
    stop_reason: str | None
    """Why the service requested that the attempt saves a checkpoint and stops."""
    error: StoredObject | None


class EvaluationView(Answer):
    """Metrics of one subject at one step.

    The subjects are `raw` pixels, the `untrained` backbone or the `start` weights, the trained `backbone`, and the `embedding` of a
    supervised method.
    """

    id: str
    attempt: int
    step: int
    epoch: float
    subject: str
    metrics: dict[str, Any]
    created_at: datetime


class EventPage(Answer):
    """Events in order; `next` is the `after` of the next request."""

    data: list[EventView]
    has_more: bool
    next: int


class MetricColumns(Answer):
    """Metrics over common steps; null where a series has no value at a step."""

    step: list[int]
    time: list[float]
    values: dict[str, list[float | None]]


class JobMetricColumns(MetricColumns):
    """Metrics of one of several jobs."""

    job_id: str


class JobsMetrics(Answer):
    """Metrics of several jobs, in the order of the request."""

    data: list[JobMetricColumns]
