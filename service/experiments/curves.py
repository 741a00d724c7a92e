"""Curves of an experiment: a metric of each variant over common steps of its seeds."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from dasl_core.headlines import number_of
from service.db.models import Experiment
from service.experiments import repository
from service.experiments.statistics import summarize
from service.metrics import repository as metrics
from service.wire.experiments import Curves, VariantCurve

Points = Iterable[tuple[int, float]]


@dataclass(frozen=True)
class _Buckets:
    """Equal intervals of steps over which a series is averaged; `width` 1 keeps every step."""

    first: int
    width: int

    def average(self, points: Points) -> dict[int, float]:
        """Return the mean of the points in each interval, by the interval's number. The last point of a step counts."""
        sums: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        for step, value in dict(points).items():
            total, count = sums[number := (step - self.first) // self.width]
            sums[number] = (total + value, count + 1)
        return {number: total / count for number, (total, count) in sums.items()}

    def last_step(self, number: int) -> int:
        """Return the last step of an interval."""
        return self.first + (number + 1) * self.width - 1


def compute_curves(
    session: Session, experiment: Experiment, metric: str, max_points: int
) -> Curves:
    """Return mean and spread of a metric over the seeds of each variant.

    Metrics of evaluations keep their steps. Other metrics are averaged per job over at most `max_points` intervals.
    """
    jobs = repository.jobs(session, experiment.id)
    span = repository.steps(session, [job.id for job in jobs], metric)
    if span is None:
        buckets = _Buckets(0, 1)
        series = {job.id: buckets.average(_evaluated(session, job.id, metric)) for job in jobs}
    else:
        first, last, most = span
        # Jobs report at the same steps, but thinning keeps different ones of old steps.
        width = 1 if most <= max_points else -((first - last - 1) // max_points)
        buckets = _Buckets(first, width)
        series = {job.id: buckets.average(_reported(session, job.id, metric)) for job in jobs}
    return Curves(
        metric=metric,
        variants=[
            _curve(
                variant["name"],
                [series[job.id] for job in jobs if job.variant == variant["name"]],
                buckets,
            )
            for variant in experiment.variants
        ],
    )


def _reported(session: Session, job_id: str, metric: str) -> Iterator[tuple[int, float]]:
    return ((row[1], row[3]) for row in metrics.points(session, job_id, [metric], 0))


def _evaluated(session: Session, job_id: str, metric: str) -> Iterator[tuple[int, float]]:
    for evaluation in repository.evaluations(session, job_id):
        value = number_of(evaluation.metrics, metric)
        if value is not None and math.isfinite(value):
            yield evaluation.step, value


def _curve(name: str, series: Sequence[Mapping[int, float]], buckets: _Buckets) -> VariantCurve:
    curve = VariantCurve(variant=name, step=[], n=[], mean=[], std=[], min=[], max=[])
    for number in sorted({number for means in series for number in means}):
        summary = summarize([means[number] for means in series if number in means])
        assert summary is not None
        curve.step.append(buckets.last_step(number))
        for name, value in summary:
            getattr(curve, name).append(value)
    return curve
