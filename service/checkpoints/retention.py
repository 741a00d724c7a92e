"""Which of a job's checkpoints stay. Deleting only marks; the dispatcher then removes the files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy.orm import Session

from dasl_core.spec import Checkpoints
from service.api.problems import Problem
from service.checkpoints import repository
from service.db.models import Checkpoint, Job

# What tells a good checkpoint, in this order.
BEST_BY = ("knn_top1", "recall_at_1")


def retire(session: Session, job: Job) -> None:
    """Mark what a job's `checkpoints` setting no longer keeps, now that it has a new one."""
    policy = Checkpoints.model_validate(job.resolved.get("checkpoints", {}))
    if policy.keep_last is None:
        return
    found = repository.kept(session, job.id)
    obsolete = beyond(policy, found)
    used = repository.in_use(session, {checkpoint.id for checkpoint in obsolete})
    for checkpoint in obsolete:
        if checkpoint.id not in used:
            checkpoint.state = repository.DELETING
    session.flush()


def beyond(policy: Checkpoints, newest_first: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that are neither new nor good enough, nor pinned, nor the end of a training."""
    assert policy.keep_last is not None
    older = list(newest_first[policy.keep_last :])
    ranked = sorted(older, key=goodness, reverse=True)
    best = {checkpoint.id for checkpoint in ranked[: policy.keep_best]}
    return [c for c in older if not (c.pinned or c.final or c.id in best)]


def goodness(checkpoint: Checkpoint) -> tuple[float, int]:
    """Orders checkpoints: by what was measured last before them, then by step."""
    for name in BEST_BY:
        value = checkpoint.metrics.get(name)
        if isinstance(value, int | float):
            return float(value), checkpoint.step
    return -math.inf, checkpoint.step


def delete(session: Session, job: Job, checkpoint: Checkpoint) -> None:
    """Mark one that a person wants gone; again is no change. Both rows are locked.

    Raises:
        Problem: 409, it is pinned, or something may still go on from it.
    """
    if checkpoint.state not in (repository.REGISTERED, repository.DAMAGED):
        return
    newest = repository.newest_of_job(session, job.id)
    why = None
    if checkpoint.pinned:
        why = "it is pinned"
    elif job.finished_at is None and newest is not None and newest.id == checkpoint.id:
        why = "its job goes on from it"
    elif repository.in_use(session, {checkpoint.id}):
        why = "an attempt or a clone goes on from it"
    if why is not None:
        detail = f"The checkpoint {checkpoint.id} cannot be deleted: {why}"
        raise Problem(409, "checkpoint-in-use", detail)
    checkpoint.state = repository.DELETING
    session.flush()
