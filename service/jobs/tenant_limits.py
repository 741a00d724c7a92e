"""Limits of a tenant that are checked at submission, at changes and for clones."""

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem
from service.api.problems import spec_problem
from service.cluster.repository import count_queued
from service.jobs import repository
from service.tokens.service import queue_full


def check_caps(
    session: Session, tenant: str, *, priority: int | None = None, hours: float | None = None
) -> None:
    """Check the priority and the time limit of a job; `None`: do not check.

    Raises:
        Problem: 422 naming each field that exceeds its cap.
    """
    limits = repository.tenant(session, tenant)
    if limits is None:
        return
    caps = (
        ("priority", "max_priority", priority, limits.max_priority),
        ("resources.max_hours", "max_hours", hours, limits.max_hours),
    )
    problems = [
        FieldProblem(
            field, f"exceeds {name} of this tenant, {cap:g}", f"{value:g}", f"at most {cap:g}"
        )
        for field, name, value, cap in caps
        if value is not None and cap is not None and value > cap
    ]
    if problems:
        raise spec_problem(problems)


def check_queue(session: Session, tenant: str, jobs: int = 1) -> None:
    """Check that a tenant may have more jobs in the queue.

    If it has a quota, its row stays locked until the transaction ends, so that two concurrent submissions cannot
    both take the last place.

    Args:
        jobs: number of jobs that are queued together.

    Raises:
        Problem: 429, the quota is exhausted.
    """
    limit = repository.lock_queue_limit(session, tenant)
    if limit is None:
        return
    queued = count_queued(session, tenant)
    if queued + jobs > limit:
        raise queue_full("tenant", "its jobs", limit, queued, jobs)
