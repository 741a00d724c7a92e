"""Experiments and their results."""

from datetime import datetime
from typing import Any, Literal

from service.wire.base import Answer

Verdict = Literal["better", "worse", "no_difference", "unstable", "too_few_seeds"]


class VariantView(Answer):
    """A variant of an experiment."""

    name: str
    changes: dict[str, Any]
    held_out_images: int | None
    """Number of images that it is evaluated on; the expected number if whole classes are held out, null without any."""


class MemberJob(Answer):
    """A job of an experiment."""

    variant: str
    seed: int
    id: str | None
    """Null: the job was deleted."""
    status: str
    """Status of the job, or `deleted`."""


class SummaryView(Answer):
    """Mean and spread over seeds. `std` is the sample standard deviation; null for one value."""

    n: int
    mean: float
    std: float | None
    min: float
    max: float


class DifferenceView(SummaryView):
    """Differences of jobs with the same seed, variant minus baseline, with 95 % intervals of their mean."""

    t_interval: tuple[float, float] | None
    bootstrap_interval: tuple[float, float] | None
    detectable: float | None
    """Smallest true difference that is found in 80 % of experiments with this number of pairs and this spread."""


class VariantResult(Answer):
    """A metric of a variant."""

    variant: str
    values: dict[int, float]
    """Values by seed, of the succeeded jobs that measured the metric."""
    summary: SummaryView | None
    difference: DifferenceView | None
    """Difference from the baseline; null for the baseline, and without a common seed."""
    verdict: Verdict | None
    """Null for the baseline, for a metric without a better direction, and for R@K of views with other augmentations."""


class MetricResult(Answer):
    """A metric of all variants."""

    metric: str
    larger_is_better: bool | None
    resolution: float | None
    """The smallest step of the metric, the share of one held-out image; null if unknown or not applicable."""
    variants: list[VariantResult]


class Results(Answer):
    """Current results of an experiment."""

    experiment: str
    baseline: str
    metric: str | None
    """The metric that decides; null before the first evaluation."""
    sentences: list[str]
    """Verdict on each variant by that metric, or by the requested metrics."""
    notes: list[str]
    """Limits of the results."""
    metrics: list[MetricResult]


class ExperimentSummary(Answer):
    """An experiment in a list."""

    id: str
    name: str
    created_at: datetime
    baseline: str
    metric: str | None
    seeds: list[int]
    variants: list[VariantView]
    statuses: dict[str, int]
    """Number of its jobs by status."""
    done: bool
    """Whether all of its jobs have ended."""


class ExperimentView(ExperimentSummary):
    """An experiment with its base spec, its jobs, and the results of the metric that decides."""

    spec: dict[str, Any]
    jobs: list[MemberJob]
    results: Results


class TotalSeconds(Answer):
    """Expected time of several jobs, one after another."""

    low: float
    high: float


class ExperimentEstimate(Answer):
    """Estimated cost of all jobs of an experiment together."""

    jobs: int
    seconds: TotalSeconds | None
    """null: the time of a variant is unknown."""
    checkpoints_bytes: int


class SubmittedExperiment(ExperimentView):
    """An experiment that was just submitted."""

    estimate: ExperimentEstimate | None = None
    warnings: list[str] = []
    """As in the answer to the submission of a job."""
    notes: list[str] = []
    """As in the answer to a validation."""


class VariantCurve(Answer):
    """A metric over the steps: mean and spread over the seeds that have a value there."""

    variant: str
    step: list[int]
    n: list[int]
    mean: list[float]
    std: list[float | None]
    min: list[float]
    max: list[float]


class Curves(Answer):
    """A metric of all variants over common steps."""

    metric: str
    variants: list[VariantCurve]
