"""Requests about jobs, and the answers with an estimate."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, WrapValidator, model_validator

from dasl_core.spec import Estimate, JobSpec, SpecError, field_problems
from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.fields import Name, Tag
from service.api.changes import Changes
from service.wire.base import Answer
from service.wire.jobs import AdviceView, JobView


def _explain(value: Any, validate: Callable[[Any], JobSpec]) -> JobSpec:
    try:
        return validate(value)
    except ValidationError as error:
        # `dasl_core.spec` writes the messages about specs.
        raise SpecError(field_problems(error, JobSpec)) from error


SpecBody = Annotated[JobSpec, WrapValidator(_explain)]


class CloneRequest(StrictModel):
    """How a clone differs from its job."""

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


class ResourcesPatch(Changes):
    """Changes to the resources of a submitted job."""

    max_hours: Annotated[float | None, Field(gt=0, le=100_000)] = None
    workers: Annotated[
        int | None, Field(ge=1, le=4096, description="Only for a paused or queued job.")
    ] = None

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if self.max_hours is None and self.workers is None:
            raise problem("is empty", "{}", "max_hours, workers or both")
        return self


class JobPatch(Changes):
    """Changes to a submitted job."""

    name: Name = ""
    tags: Annotated[dict[Tag, Tag], Field(max_length=50)] = {}
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    resources: ResourcesPatch = ResourcesPatch(max_hours=24)


class Seconds(BaseModel):
    """Expected time of a job once it starts."""

    low: float
    high: float
    source: Literal["earlier_job", "computation"]
    """`earlier_job`: the speed of a similar job on the same number of CPUs and GPUs. `computation`: floating-point
    operations and the measured speed of cores; for CPUs only."""
    job_id: str | None = None
    """The earlier job."""
    images_per_second: float | None = None
    """Its speed."""


class JobEstimate(Estimate):
    """Estimated cost of a job."""

    seconds: Seconds | None
    """null: unknown."""


class SubmittedJob(JobView):
    """A job that was just submitted."""

    estimate: JobEstimate | None = None
    warnings: list[str] = []
    """Warnings, for example that the job must wait for nodes."""


class ValidatedJob(Answer):
    """A resolved spec and its estimated cost."""

    resolved: dict[str, Any]
    estimate: JobEstimate
    warnings: list[str] = []
    """As in the answer to a submission."""
    advice: list[AdviceView] = []
