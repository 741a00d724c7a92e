"""Retention of checkpoints. Deleting only marks them; the dispatcher removes the files."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from dasl_core.headlines import is_ranked, rank_of_checkpoint
from dasl_core.spec import Checkpoints
from dasl_core.spec.versions import UnreadableSpec
from service.api.problems import Problem
from service.checkpoints import repository
from service.db.models import Checkpoint, Job

logger = logging.getLogger(__name__)


class Dropped(NamedTuple):
    """The checkpoints that `drop_checkpoints` marked, and whether nothing is left to mark."""

    checkpoints: int
    bytes: int
    complete: bool


def mark_obsolete(session: Session, job: Job) -> None:
    """Mark for deletion the checkpoints that the job's `checkpoints` settings no longer keep."""
    if (policy := _policy(job)) is None:
        return
    obsolete = obsolete_checkpoints(policy, repository.lock_all(session, job.id))
    used = _used(session, obsolete)
    for checkpoint in obsolete:
        if checkpoint.id not in used:
            checkpoint.state = repository.DELETING
    session.flush()


def _policy(job: Job) -> Checkpoints | None:
    """Return the job's `checkpoints` settings; `None` if they cannot be read, and all are kept."""
    try:
        return job.resolved_spec.checkpoints
    except UnreadableSpec as error:
        logger.warning("Job %s keeps all its checkpoints: %s", job.id, error)
        return None


def mark_obsolete_start(session: Session, clone: Job) -> None:
    """After the end of a clone, mark its start checkpoint, unless the source job still keeps it."""
    if clone.start_checkpoint_id is not None:
        mark_obsolete(session, repository.get_job(session, clone.start_checkpoint_id))


def obsolete_checkpoints(
    policy: Checkpoints, newest_first: Sequence[Checkpoint]
) -> list[Checkpoint]:
    """Select the checkpoints that are neither among the newest or the best, nor pinned, nor final.

    Checkpoints within an epoch, from `checkpoints.every_minutes` or a pause, only serve to resume: they are kept while
    they are among the two newest (one may be damaged), and `checkpoints.keep_last` does not count them.
    """
    within_epochs = [c for c in newest_first[2:] if not c.epoch.is_integer()]
    ends = [c for c in newest_first if c.epoch.is_integer()]
    older = [] if policy.keep_last is None else ends[policy.keep_last :]
    ranked = best_first(policy, older)
    best = {checkpoint.id for checkpoint in ranked[: policy.keep_best]}
    dropped = [c for c in older if c.id not in best]
    return [c for c in (*dropped, *within_epochs) if not (c.pinned or c.final)]


def droppable(policy: Checkpoints, newest_first: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Select the checkpoints of an ended job that retention may remove, oldest first.

    Kept are the newest, which clones start from by default, the best (`checkpoints.keep_best`, at least one), the final
    and the pinned ones.
    """
    ranked = [c for c in newest_first if is_ranked(c.metrics, policy.best_by)]
    best = {c.id for c in best_first(policy, ranked)[: max(1, policy.keep_best)]}
    oldest_first = reversed(newest_first[1:])
    return [c for c in oldest_first if not (c.final or c.pinned or c.id in best)]


def drop_checkpoints(session: Session, job: Job, needed: int | None = None) -> Dropped:
    """Mark checkpoints of an ended job for deletion, oldest first. The job must be locked.

    Args:
        needed: stop once this number of bytes is freed; None: mark all removable checkpoints, except those with
            evaluations, embeddings or exports, which would be deleted as well.
    """
    if (policy := _policy(job)) is None:
        return Dropped(0, 0, True)
    candidates = droppable(policy, repository.lock_all(session, job.id))
    used = _used(session, candidates)
    if needed is None:
        finished = repository.with_results(session, {checkpoint.id for checkpoint in candidates})
        candidates = [checkpoint for checkpoint in candidates if checkpoint.id not in finished]
    count = freed = 0
    for checkpoint in candidates:
        if needed is not None and freed >= needed:
            return Dropped(count, freed, False)
        if checkpoint.id not in used:
            checkpoint.state = repository.DELETING
            count, freed = count + 1, freed + checkpoint.size
    session.flush()
    return Dropped(count, freed, not used)


def best(policy: Checkpoints, newest_first: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the best checkpoint by `checkpoints.best_by`; None if no checkpoint has the metric."""
    ranked = [c for c in newest_first if is_ranked(c.metrics, policy.best_by)]
    return next(iter(best_first(policy, ranked)), None)


def _used(session: Session, checkpoints: Sequence[Checkpoint]) -> set[str]:
    ids = {checkpoint.id for checkpoint in checkpoints}
    return repository.in_use(session, ids) | repository.awaited(session, ids)


def best_first(policy: Checkpoints, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints by `checkpoints.best_by`."""

    def rank(checkpoint: Checkpoint) -> tuple[float, bool, int]:
        return rank_of_checkpoint(checkpoint.metrics, checkpoint.step, policy.best_by)

    return sorted(checkpoints, key=rank, reverse=True)


def delete(session: Session, job: Job, checkpoint: Checkpoint) -> None:
    """Mark a checkpoint for deletion. Idempotent. Both rows must be locked.

    Raises:
        Problem: 409, it is pinned, or a job may still resume from it.
    """
    if checkpoint.state not in (repository.REGISTERED, repository.DAMAGED):
        return
    newest = repository.newest(session, job.id)
    reason = None
    if checkpoint.pinned:
        reason = "it is pinned"
    elif job.finished_at is None and newest is not None and newest.id == checkpoint.id:
        reason = "its job would resume from it"
    elif repository.in_use(session, {checkpoint.id}):
        reason = "an attempt or a clone resumes from it"
    if reason is not None:
        detail = f"The checkpoint {checkpoint.id} cannot be deleted: {reason}"
        raise Problem(409, "checkpoint-in-use", detail)
    checkpoint.state = repository.DELETING
    session.flush()
