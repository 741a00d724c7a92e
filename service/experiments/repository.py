"""SQL of experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from dasl_core.vocabulary import BEFORE_TRAINING, TRAINED
from service.db.models import Evaluation, Experiment, Job, Metric
from service.states import JobStatus


@dataclass(frozen=True)
class Measured:
    """An evaluation of a job."""

    job_id: str
    step: int
    subject: str
    metrics: dict[str, Any]


def has_job_of(account: str) -> ColumnElement[bool]:
    """Return the condition that an experiment has a job of a user, or of a token without one."""
    own = select(Job.id).where(Job.experiment_id == Experiment.id, Job.account_id == account)
    return own.exists()


def jobs(session: Session, experiment_id: str) -> Sequence[Job]:
    """Return the jobs of an experiment in the order of their submission, without deleted ones."""
    query = select(Job).where(Job.experiment_id == experiment_id, Job.deleted_at.is_(None))
    return session.scalars(query.order_by(Job.id).execution_options(populate_existing=True)).all()


def statuses(session: Session, experiment_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of jobs by status, by experiment, without deleted jobs."""
    rows = session.execute(
        select(Job.experiment_id, Job.status, func.count())
        .where(Job.experiment_id.in_(experiment_ids), Job.deleted_at.is_(None))
        .group_by(Job.experiment_id, Job.status)
    )
    counts: dict[str, dict[str, int]] = {}
    for experiment_id, status, count in rows:
        assert experiment_id is not None
        counts.setdefault(experiment_id, {})[status] = count
    return counts


def remove(session: Session, experiment_id: str) -> None:
    """Remove an experiment. Its jobs stay, without an experiment."""
    session.execute(
        update(Job)
        .where(Job.experiment_id == experiment_id)
        .values(experiment_id=None, variant=None, seed=None)
    )
    session.execute(delete(Experiment).where(Experiment.id == experiment_id))


def final_evaluations(session: Session, experiment_id: str) -> Sequence[Measured]:
    """Return the last evaluations of the trained networks of succeeded jobs, newer ones last."""
    last = (
        select(Evaluation.job_id, func.max(Evaluation.step).label("step"))
        .join(Job, Job.id == Evaluation.job_id)
        .where(*_succeeded(experiment_id), Evaluation.subject.in_(TRAINED))
        .group_by(Evaluation.job_id)
        .subquery()
    )
    query = select(Evaluation).join(
        last, (Evaluation.job_id == last.c.job_id) & (Evaluation.step == last.c.step)
    )
    return _measured(session, query.where(Evaluation.subject.in_(TRAINED)))


def evaluations_before_training(session: Session, experiment_id: str) -> Sequence[Measured]:
    """Return the evaluations of raw pixels and of the network before training of succeeded jobs."""
    query = select(Evaluation).join(Job, Job.id == Evaluation.job_id)
    before = Evaluation.subject.in_(("raw", *BEFORE_TRAINING))
    return _measured(session, query.where(*_succeeded(experiment_id), before))


def evaluations(session: Session, job_id: str) -> Sequence[Measured]:
    """Return all evaluations of a job's trained network, by step; newer ones last."""
    query = select(Evaluation).where(Evaluation.job_id == job_id)
    return _measured(session, query.where(Evaluation.subject.in_(TRAINED)))


def _succeeded(experiment_id: str) -> tuple[ColumnElement[bool], ...]:
    is_member = Job.experiment_id == experiment_id, Job.deleted_at.is_(None)
    return *is_member, Job.status == JobStatus.SUCCEEDED


def _measured(session: Session, query: Any) -> Sequence[Measured]:
    order = (Evaluation.job_id, Evaluation.step, Evaluation.attempt, Evaluation.id)
    rows = session.scalars(query.order_by(*order))
    return [Measured(row.job_id, row.step, row.subject, row.metrics) for row in rows]


def steps(session: Session, job_ids: Sequence[str], metric: str) -> tuple[int, int, int] | None:
    """Return the first and last step of a training metric in the jobs, and the largest number of points of a job."""
    rows = session.execute(
        select(func.min(Metric.step), func.max(Metric.step), func.count())
        .where(Metric.job_id.in_(job_ids), Metric.name == metric)
        .group_by(Metric.job_id)
    ).all()
    if not rows:
        return None
    return min(row[0] for row in rows), max(row[1] for row in rows), max(row[2] for row in rows)
