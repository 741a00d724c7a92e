"""Find, show, cancel and delete experiments. Nothing here commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from service import ids, lifecycle
from service.api.problems import Problem, not_found
from service.db.models import Experiment, Job
from service.experiments import repository
from service.experiments.results import results_of
from service.experiments.schemas import (
    ExperimentSummary,
    ExperimentView,
    MemberJob,
    Results,
    VariantView,
)
from service.states import TERMINAL, JobStatus
from service.storage import deletion

_DELETED = "deleted"


def get(session: Session, tenant: str, experiment_id: str, *, lock: bool = False) -> Experiment:
    """Return a tenant's experiment.

    Args:
        lock: until the transaction ends.

    Raises:
        Problem: 404.
    """
    found = None
    if ids.is_id("exp", experiment_id):
        found = repository.get(session, tenant, experiment_id, lock=lock)
    if found is None:
        raise not_found("experiment", experiment_id)
    return found


def summaries(session: Session, rows: Sequence[Experiment]) -> dict[str, ExperimentSummary]:
    """Return the view of experiments in a list, by id."""
    statuses = repository.statuses(session, [row.id for row in rows])
    return {row.id: _summary(row, statuses.get(row.id, {})) for row in rows}


def view_of(session: Session, experiment: Experiment) -> ExperimentView:
    """Return the view of an experiment with its jobs, and the results of the metric that decides."""
    jobs = repository.jobs(session, experiment.id)
    by_place = {(job.variant, job.seed): job for job in jobs}
    members = [
        _member(by_place.get((variant["name"], seed)), variant["name"], seed)
        for variant in experiment.variants
        for seed in experiment.seeds
    ]
    statuses: dict[str, int] = {}
    for job in jobs:
        statuses[job.status] = statuses.get(job.status, 0) + 1
    evaluations = repository.final_evaluations(session, experiment.id)
    before = repository.evaluations_before_training(session, experiment.id)
    return ExperimentView(
        **dict(_summary(experiment, statuses)),
        spec=experiment.spec,
        jobs=members,
        results=results_of(experiment, jobs, evaluations, before, only_deciding=True),
    )


def results(session: Session, experiment: Experiment, metrics: Sequence[str] | None) -> Results:
    """Return the results of an experiment, by default of all metrics with a better direction."""
    jobs = repository.jobs(session, experiment.id)
    evaluations = repository.final_evaluations(session, experiment.id)
    before = repository.evaluations_before_training(session, experiment.id)
    return results_of(experiment, jobs, evaluations, before, metrics)


def cancel(session: Session, experiment: Experiment) -> ExperimentView:
    """Request that all jobs that have not ended are cancelled; a repetition changes nothing."""
    for job in repository.jobs(session, experiment.id):
        lifecycle.request_cancel(session, job.id)
    return view_of(session, experiment)


def delete(session: Session, experiment: Experiment, *, with_jobs: bool) -> None:
    """Delete an experiment; its jobs stay, and belong to none then.

    Args:
        with_jobs: delete the jobs as well.

    Raises:
        Problem: 409, a job to be deleted has not ended, or cannot be deleted for another reason.
    """
    if with_jobs:
        jobs = repository.jobs(session, experiment.id)
        running = [job.id for job in jobs if JobStatus(job.status) not in TERMINAL]
        if running:
            detail = (
                f"{len(running)} of its jobs have not ended. Cancel the experiment first (dasl experiments cancel "
                f"{experiment.id}), or delete it without its jobs"
            )
            raise Problem(409, "wrong-state", detail, extra={"jobs": running[:5]})
        for job in jobs:
            deletion.delete_job(session, job)
    repository.remove(session, experiment.id)


def _summary(experiment: Experiment, statuses: Mapping[str, int]) -> ExperimentSummary:
    return ExperimentSummary(
        id=experiment.id,
        name=experiment.name,
        created_at=experiment.created_at,
        baseline=experiment.baseline,
        metric=experiment.metric,
        seeds=experiment.seeds,
        variants=[VariantView(**variant) for variant in experiment.variants],
        statuses=dict(statuses),
        done=all(JobStatus(status) in TERMINAL for status in statuses),
    )


def _member(job: Job | None, variant: str, seed: int) -> MemberJob:
    if job is None:
        return MemberJob(variant=variant, seed=seed, id=None, status=_DELETED)
    return MemberJob(variant=variant, seed=seed, id=job.id, status=job.status)
