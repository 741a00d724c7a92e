"""SQL of checkpoints and artifacts."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Artifact, Checkpoint, Job

REGISTERED = "registered"


def get(session: Session, tenant: str, checkpoint_id: str) -> Checkpoint | None:
    """A tenant's checkpoint."""
    return session.scalars(
        select(Checkpoint)
        .join(Job, Checkpoint.job_id == Job.id)
        .where(Checkpoint.id == checkpoint_id, Job.tenant == tenant)
    ).one_or_none()


def by_uri(session: Session, uri: str) -> Checkpoint | None:
    """The checkpoint at this place."""
    return session.scalars(select(Checkpoint).where(Checkpoint.uri == uri)).one_or_none()


def of_job(session: Session, job_id: str) -> Sequence[Checkpoint]:
    """A job's checkpoints, oldest first."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id)
        .order_by(Checkpoint.step, Checkpoint.id)
    ).all()


def newest_of_job(session: Session, job_id: str) -> Checkpoint | None:
    """The checkpoint that a job's next attempt goes on from."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.state == REGISTERED)
        .order_by(Checkpoint.step.desc(), Checkpoint.id.desc())
        .limit(1)
    ).first()


def artifacts(session: Session, job_id: str) -> Sequence[Artifact]:
    """A job's artifacts by name."""
    return session.scalars(
        select(Artifact).where(Artifact.job_id == job_id).order_by(Artifact.name)
    ).all()


def artifact(session: Session, job_id: str, name: str) -> Artifact | None:
    """One artifact of a job."""
    return session.get(Artifact, (job_id, name))
