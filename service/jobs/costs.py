"""Estimate a job's time, memory and disk, and warn of surprising costs."""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.spec import DatasetFacts, ResolvedJobSpec, seconds_on_cores
from dasl_core.spec import estimate as estimate_cost
from dasl_core.spec.resolve.estimate import LEAST_AROUND, MOST_AROUND
from service.jobs import repository
from service.jobs.schemas import JobEstimate, Seconds
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.packing import Worker

# An earlier job's speed excludes evaluations, and other programs may use the machine.
_LEAST_MEASURED, _MOST_MEASURED = 0.9, 1.5
# Enlarging images by more than this factor adds no detail, and the time grows with its square.
_ENLARGED = 4


_Machine = tuple[int, int]
"""CPUs and GPUs of all ranks of a job together."""


def estimate(
    earlier: Sequence[repository.Speed],
    resolved: ResolvedJobSpec,
    facts: DatasetFacts,
    evaluated: DatasetFacts | None,
    worker: Worker | None,
) -> JobEstimate:
    """Estimate time, memory and disk of a job.

    Args:
        earlier: speeds of earlier jobs of its method, newest first.
        evaluated: facts about the data set of `evaluate.dataset`.
        worker: the resources of each rank if the job started now; None: unknown.
    """
    costs = estimate_cost(resolved, facts, evaluated)
    images = costs.total_steps * resolved.train.batch_size
    seconds = None
    if worker is not None:
        workers = resolved.resources.workers
        machine = (worker.cpus * workers, worker.gpus * workers)
        seconds = _by_earlier_job(earlier, resolved, machine, images)
        if seconds is None and not worker.gpus:
            bounds = seconds_on_cores(costs, resolved, worker.cpus * workers)
            if bounds is not None:
                low, high = (round(bound, 1) for bound in bounds)
                seconds = Seconds(low=low, high=high, source="computation")
    return JobEstimate(**costs.model_dump(), seconds=seconds)


def _by_earlier_job(
    earlier: Sequence[repository.Speed], resolved: ResolvedJobSpec, machine: _Machine, images: int
) -> Seconds | None:
    """Estimate by the speed of the newest similar job on the same number of CPUs and GPUs."""
    same = _work(resolved.model_dump(mode="json"))
    for job in earlier:
        speed = _speed(job.progress)
        if speed is None or _work(job.resolved) != same or _machine(job) != machine:
            continue
        return Seconds(
            low=round(images / speed * _LEAST_MEASURED + LEAST_AROUND, 1),
            high=round(images / speed * _MOST_MEASURED + MOST_AROUND, 1),
            source="earlier_job",
            job_id=job.id,
            images_per_second=round(speed, 2),
        )
    return None


def _speed(progress: dict[str, Any] | None) -> float | None:
    """Return the images per second in a progress report, which has no schema."""
    speed = (progress or {}).get("images_per_second")
    return speed if isinstance(speed, int | float) and 0 < speed < math.inf else None


def _work(resolved: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings that decide how long an image takes."""
    backbone, train, method = (resolved[part] for part in ("backbone", "train", "method"))
    return (
        *(backbone.get(name) for name in ("name", "image_size", "stem", "in_channels")),
        *(
            train.get(name)
            for name in ("batch_size", "precision", "checkpoint_activations", "sharding")
        ),
        *(method.get(name) for name in ("local_crops", "local_size")),
    )


def _machine(job: repository.Speed) -> _Machine | None:
    resources = job.resolved["resources"]
    workers = job.workers or resources["workers"]
    cpus, gpus = resources["cpus_per_worker"], resources["gpus_per_worker"]
    if "auto" in (cpus, gpus):
        return None
    return cpus * workers, gpus * workers


def warnings(
    session: Session, resolved: ResolvedJobSpec, facts: DatasetFacts, estimate: JobEstimate
) -> list[str]:
    """Return warnings of enlarged images and of checkpoints that do not fit on the disk."""
    messages = []
    size, median = resolved.backbone.image_size, facts.median_size
    if size > _ENLARGED * median:
        messages.append(
            f"backbone.image_size: the images are enlarged to {size} px; half of them have {median} px or less on their "
            f"shorter side. Set a smaller one, unless the weights to start from need it."
        )
    report = DispatcherReport.from_snapshot(scheduling.snapshot(session))
    free = report.store.free_bytes if report is not None and report.store is not None else None
    if free is not None and estimate.checkpoints_bytes > free:
        messages.append(
            f"checkpoints: {estimate.checkpoints_kept} checkpoints take about {estimate.checkpoints_bytes / 1e9:.1f} GB, "
            f"and {free / 1e9:.1f} GB are free. Set checkpoints.keep_last, or make room."
        )
    return messages
