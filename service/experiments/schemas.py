"""Requests about experiments."""

import math
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from dasl_core.headlines import DIRECTED_METRICS, better_direction
from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.errors import METRIC_PATTERN, NAME_PATTERN, closest
from service.experiments.variants import LONGEST_NAME, Variant, grid_variants
from service.jobs.schemas import JobEstimate
from service.wire.base import Answer
from service.wire.experiments import ExperimentEstimate

MOST_JOBS = 200
"""Number of jobs that one experiment may have."""

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=LONGEST_NAME, pattern=NAME_PATTERN)
]
Path = Annotated[
    str, StringConstraints(max_length=100, pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$")
]


def _has_direction(metric: str) -> str:
    if better_direction(metric) is None:
        message = "is not a metric that can be better or worse" + closest(metric, DIRECTED_METRICS)
        raise problem(message, metric, "one of " + ", ".join(DIRECTED_METRICS))
    return metric


DecidingMetric = Annotated[
    str,
    StringConstraints(max_length=50, pattern=METRIC_PATTERN),
    AfterValidator(_has_direction),
]


class ExperimentRequest(StrictModel):
    """A base spec, its variants, and the seeds of each variant."""

    name: Text
    spec: Annotated[
        dict[str, Any],
        Field(
            description="What the variants have in common: the spec of a job, without its name and seed."
        ),
    ]
    variants: Annotated[
        dict[Text, dict[str, Any]] | None,
        Field(
            min_length=1,
            max_length=MOST_JOBS,
            description="Changes to the base spec by the name of the variant, nested as in a spec; {} for none.",
        ),
    ] = None
    grid: Annotated[
        dict[Path, Annotated[list[Any], Field(min_length=1, max_length=MOST_JOBS)]] | None,
        Field(
            min_length=1,
            max_length=10,
            description="Instead of variants: values by dotted path, such as `dar.weight`; each combination is a variant.",
        ),
    ] = None
    seeds: Annotated[
        list[Annotated[int, Field(strict=True, ge=0, lt=2**63)]],
        Field(
            min_length=1,
            max_length=MOST_JOBS,
            description="`train.seed` of the jobs of each variant.",
        ),
    ] = [0, 1, 2, 3, 4]
    baseline: Annotated[
        Text | None,
        Field(description="The variant with which the others are compared; null: the first one."),
    ] = None
    metric: Annotated[
        DecidingMetric | None,
        Field(
            description="The metric that decides; null: the first headline metric that is measured."
        ),
    ] = None

    @model_validator(mode="after")
    def _check_grid(self) -> Self:
        if (self.variants is None) == (self.grid is None):
            value = "neither" if self.grid is None else "both"
            raise problem("needs variants or a grid", value, "one of them", field="variants")
        if len(set(self.seeds)) < len(self.seeds):
            raise problem("has a seed twice", self.seeds, "different numbers", field="seeds")
        for path in self.grid or {}:
            if outer := next((key for key in self.grid or {} if path.startswith(f"{key}.")), ""):
                message = f"is a part of {outer}, which the grid sets as well"
                raise problem(message, path, "fields apart, or `variants`", field=f"grid.{path}")
        combinations = math.prod(map(len, (self.grid or {}).values()))
        jobs = len(self.seeds) * (combinations if self.variants is None else len(self.variants))
        if jobs > MOST_JOBS:
            field = "grid" if self.variants is None else "variants"
            message = f"makes {jobs} jobs, one for each variant and seed"
            raise problem(message, jobs, f"at most {MOST_JOBS}", field=field)
        names = [variant.name for variant in self.all_variants()]
        if len(set(names)) < len(names) or max(map(len, names)) > LONGEST_NAME:
            message = (
                f"makes variants whose names are equal or longer than {LONGEST_NAME} characters"
            )
            raise problem(
                message, self.grid, "short, different values, or `variants`", field="grid"
            )
        if self.baseline is not None and self.baseline not in names:
            message = "is not a variant" + closest(self.baseline, names)
            raise problem(
                message, self.baseline, "one of " + ", ".join(names[:10]), field="baseline"
            )
        return self

    def all_variants(self) -> list[Variant]:
        """Return the variants; variants of a grid in the order of its values."""
        if self.variants is None:
            return grid_variants(self.grid or {})
        return [Variant(name, changes) for name, changes in self.variants.items()]


class VariantPlan(Answer):
    """The spec of a variant, resolved with the first seed, and the estimated cost per job."""

    name: str
    resolved: dict[str, Any]
    estimate: JobEstimate


class ValidatedExperiment(Answer):
    """The resolved specs of all variants, and their estimated cost."""

    variants: list[VariantPlan]
    estimate: ExperimentEstimate
    warnings: list[str]
    """As in the answer to the submission of a job."""
    notes: list[str]
    """Limits of the results to expect: settings that differ beside the changes, held-out images, number of seeds."""
