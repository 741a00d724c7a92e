"""Experiments and their results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from service.client.models import Record


class Variant(Record):
    """Named changes of the base spec. `held_out_images`: the number of images that it is evaluated on."""

    name: str
    changes: dict[str, Any] = Field(default_factory=dict)
    held_out_images: int | None = None


class MemberJob(Record):
    """A job of an experiment; one that was deleted has the status `deleted` and no id."""

    variant: str
    seed: int
    id: str | None = None
    status: str


class Summary(Record):
    """Mean and spread over seeds. `std` is the sample's, None of one value."""

    n: int
    mean: float
    std: float | None = None
    min: float
    max: float


class Difference(Summary):
    """Variant minus baseline, of jobs with the same seed, with 95 % intervals of the mean."""

    t_interval: tuple[float, float] | None = None
    bootstrap_interval: tuple[float, float] | None = None


class VariantResult(Record):
    """A metric of a variant. `verdict`: better, worse, no_difference or too_few_seeds."""

    variant: str
    values: dict[int, float] = Field(default_factory=dict)
    summary: Summary | None = None
    difference: Difference | None = None
    verdict: str | None = None


class MetricResult(Record):
    """A metric of all variants. `resolution`: the share of one held-out image."""

    metric: str
    larger_is_better: bool | None = None
    resolution: float | None = None
    variants: list[VariantResult] = Field(default_factory=list)


class Results(Record):
    """What an experiment shows so far: `sentences` on the metric that decides or was asked for, and `notes` on what they leave out."""

    baseline: str = ""
    metric: str | None = None
    sentences: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    metrics: list[MetricResult] = Field(default_factory=list)


class TotalSeconds(Record):
    """Expected time of several jobs, one after another."""

    low: float
    high: float


class ExperimentEstimate(Record):
    """Estimated cost of all jobs of an experiment together. `seconds`: None of unknown time."""

    jobs: int
    seconds: TotalSeconds | None = None
    checkpoints_bytes: int = 0


class VariantPlan(Record):
    """The spec of a variant, resolved with the first seed, and the estimated cost of each of its jobs."""

    name: str
    resolved: dict[str, Any] = Field(default_factory=dict)
    estimate: dict[str, Any] = Field(default_factory=dict)


class ExperimentValidation(Record):
    """The resolved specs of all variants, and their estimated cost."""

    variants: list[VariantPlan] = Field(default_factory=list)
    estimate: ExperimentEstimate
    warnings: list[str] = Field(default_factory=list)


class Experiment(Record):
    """An experiment; those of a list have no `spec`, `jobs` and `results`. `estimate`: after its submission."""

    id: str
    name: str
    created_at: datetime | None = None
    baseline: str = ""
    metric: str | None = None
    seeds: list[int] = Field(default_factory=list)
    variants: list[Variant] = Field(default_factory=list)
    statuses: dict[str, int] = Field(default_factory=dict)
    done: bool = False
    spec: dict[str, Any] = Field(default_factory=dict)
    jobs: list[MemberJob] = Field(default_factory=list)
    results: Results = Field(default_factory=Results)
    estimate: ExperimentEstimate | None = None
    warnings: list[str] = Field(default_factory=list)


class Curve(Record):
    """A metric of a variant by step: number of seeds, mean and spread."""

    variant: str
    step: list[int] = Field(default_factory=list)
    n: list[int] = Field(default_factory=list)
    mean: list[float] = Field(default_factory=list)
    std: list[float | None] = Field(default_factory=list)
    min: list[float] = Field(default_factory=list)
    max: list[float] = Field(default_factory=list)
