"""Find, show, cancel and delete experiments. The caller commits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from sqlalchemy.orm import Session

from service import lifecycle
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem
from service.db.models import Experiment
from service.db.rows import matching, owned
from service.experiments import repository
from service.experiments.results import compute_results
from service.states import TERMINAL, JobStatus
from service.storage import deletion
from service.wire.experiments import (
    ExperimentSummary,
    ExperimentView,
    MemberJob,
    Results,
    VariantView,
)


def get(session: Session, tenant: str, experiment_id: str, *, lock: bool = False) -> Experiment:
    """Return a tenant's experiment.

    Args:
        lock: whether to lock it until the transaction ends.

    Raises:
        Problem: 404.
    """
    query = owned(Experiment, tenant)
    return references.get(session, query, "exp", experiment_id, "experiment", lock=lock)


def find(session: Session, caller: Caller, reference: str) -> Experiment:
    """Return the experiment that a reference matches.

    Args:
        reference: as of `service.db.rows.matching`; `last` is the newest experiment with jobs that the
            caller's user or token has submitted.

    Raises:
        Problem: 404; 409, it matches several experiments, which the answer lists.
    """
    query, is_own = owned(Experiment, caller.tenant), repository.has_job_of(caller.account_id)
    found = matching(session, query, "exp", reference, is_own)
    experiments: list[Experiment] = [row[0] for row in found]
    candidates = [(each.id, each.name, f"{each.created_at:%Y-%m-%d %H:%M}") for each in experiments]
    references.check_matches_one("experiment", reference, candidates)
    return experiments[0]


def summaries(session: Session, rows: Sequence[Experiment]) -> dict[str, ExperimentSummary]:
    """Return the view of experiments in a list, by id."""
    statuses = repository.statuses(session, [row.id for row in rows])
    return {row.id: _summary(row, statuses.get(row.id, {})) for row in rows}


def experiment_view(session: Session, experiment: Experiment) -> ExperimentView:
    """Return the view of an experiment with its jobs, and the results of the metric that decides."""
    jobs = repository.jobs(session, experiment.id)
    by_place = {(job.variant, job.seed): job for job in jobs}
    members = []
    for variant, seed in product(experiment.variants, experiment.seeds):
        job = by_place.get((variant["name"], seed))
        status = job.status if job is not None else "deleted"
        members.append(
            MemberJob(variant=variant["name"], seed=seed, id=job and job.id, status=status)
        )
    return ExperimentView(
        **dict(_summary(experiment, Counter(job.status for job in jobs))),
        spec=experiment.spec,
        jobs=members,
        results=compute_results(session, experiment, jobs, only_deciding=True),
    )


def results(session: Session, experiment: Experiment, metrics: Sequence[str] | None) -> Results:
    """Return the results of an experiment, by default of all metrics with a better direction."""
    jobs = repository.jobs(session, experiment.id)
    return compute_results(session, experiment, jobs, metrics)


def cancel(session: Session, experiment: Experiment) -> ExperimentView:
    """Request that all unfinished jobs are cancelled. Idempotent."""
    for job in repository.jobs(session, experiment.id):
        lifecycle.request_cancel(session, job.id)
    return experiment_view(session, experiment)


def delete(session: Session, experiment: Experiment, *, with_jobs: bool) -> None:
    """Delete an experiment; its jobs stay, without an experiment.

    Args:
        with_jobs: whether to delete the jobs as well.

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
