"""Find and delete tasks, and limit how many wait."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.api import references
from service.api.auth import Caller
from service.api.problems import not_found, quota_exceeded
from service.db.models import Task
from service.tasks.repository import Tasks

T = TypeVar("T", bound=Task)

# A task may read many images from a slow disk, and a tenant's tasks run one after another.
MAX_PENDING = 8


def get(tasks: Tasks[T], session: Session, tenant: str, task_id: str) -> T:
    """Return a tenant's task.

    Raises:
        Problem: 404.
    """
    return references.get(session, tasks.owned(tenant), tasks.prefix, task_id, tasks.noun)


def check_pending(session: Session, tasks: Tasks[Any], caller: Caller) -> None:
    """Check that a caller's token may have another queued or running task of a kind.

    Raises:
        Problem: 429.
    """
    used = tasks.count_pending(session, caller.token_id)
    if used >= MAX_PENDING:
        detail = f"{used} {tasks.noun}s of this token are queued or running, which is the limit; try again when one has ended"
        quota = f"pending_{tasks.noun.replace(' ', '_')}s"
        raise quota_exceeded(quota, MAX_PENDING, used, detail)


def delete(session: Session, tasks: Tasks[T], task: T) -> None:
    """Delete a task, even while it runs.

    Raises:
        Problem: 404, it was deleted concurrently.
    """
    locked = tasks.lock(session, task.id)
    if locked is None:
        raise not_found(tasks.noun, task.id)
    locked.deleted_at = datetime.now(UTC)
