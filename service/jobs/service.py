"""Submitting jobs and looking after them. Nothing here commits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dasl_core.spec import (
    DatasetFacts,
    Estimate,
    FieldProblem,
    JobSpec,
    ResolvedJobSpec,
    SpecError,
    branch_problems,
    field_problems,
)
from dasl_core.spec import estimate as estimate_cost
from dasl_core.spec import resolve as resolve_spec
from service import ids, lifecycle
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found, spec_problem
from service.checkpoints import repository as checkpoints
from service.datasets import repository as datasets
from service.db.locks import lock_job
from service.db.models import Checkpoint, Dataset, Job
from service.jobs import repository
from service.jobs.schemas import JobPatch, JobView
from service.scheduling import capacity
from service.states import TERMINAL, Desired
from service.tokens import repository as tokens
from service.tokens.service import check_queue


@dataclass(frozen=True)
class Plan:
    """A spec that can be run: every "auto" a number, the data sets found."""

    resolved: ResolvedJobSpec
    estimate: Estimate
    dataset: Dataset
    evaluate_dataset: Dataset | None


def plan(
    session: Session,
    tenant: str,
    spec: JobSpec,
    known: Sequence[FieldProblem] = (),
    *,
    keep: bool = False,
) -> Plan:
    """Find a spec's data sets and resolve it.

    Args:
        known: what was found to be wrong before.
        keep: nobody may delete the data sets until this transaction, which writes, ends.

    Raises:
        Problem: 422 naming each field at fault; 409 while a data set is still being ingested.
    """
    dataset = _ready_dataset(session, tenant, spec.dataset, "dataset", keep)
    evaluate_dataset = None
    if spec.evaluate.dataset is not None:
        name = spec.evaluate.dataset
        evaluate_dataset = _ready_dataset(session, tenant, name, "evaluate.dataset", keep)
        if evaluate_dataset.id == dataset.id:  # once by name, once by id
            raise field_problem(
                "evaluate.dataset",
                "is what is trained on: each image would find itself",
                name,
                "another data set, or null, which holds images out",
            )
    facts = DatasetFacts.model_validate(dataset.facts)
    problems = [*known, *capacity.capacity_problems(session, spec.resources)]
    try:
        resolved = resolve_spec(spec, facts)
    except SpecError as error:
        problems += error.problems
    if problems:
        # Too many workers are too many for the cluster and for the data: one mistake, told once.
        by_field: dict[str, FieldProblem] = {}
        for problem in problems:
            by_field.setdefault(problem.field, problem)
        raise spec_problem(list(by_field.values()))
    return Plan(resolved, estimate_cost(resolved, facts), dataset, evaluate_dataset)


def submit(
    session: Session,
    caller: Caller,
    spec: JobSpec,
    key: str | None,
    known: Sequence[FieldProblem] = (),
    *,
    start: Callable[[], Checkpoint] | None = None,
    asked: dict[str, Any] | None = None,
) -> tuple[JobView, bool]:
    """Queue a job.

    Args:
        known: what was found to be wrong before; it does not matter to a repetition.
        key: the Idempotency-Key. The same key and spec again give the first answer again.
        start: finds another job's checkpoint to go on from; not called for a repetition.
        asked: what the key stands for, where that is not the spec itself.

    Returns:
        The job as it was answered the first time, and whether this is such a repetition.

    Raises:
        Problem: as `plan`; 422 when the key was used for another spec; 429, a quota is used up.
    """
    tenant = caller.tenant
    submitted = spec.model_dump(mode="json", exclude_unset=True)
    body = json.dumps(submitted if asked is None else asked, sort_keys=True)
    body_hash = hashlib.sha256(body.encode()).hexdigest()
    queue_limit = (
        tokens.lock_queue_limit(session, caller.token_id) if caller.has_queue_limit else None
    )
    if key is not None:
        seen = repository.answer_of(session, tenant, key)
        if seen is not None:
            return _answer_again(*seen, body_hash), True
    checkpoint = start() if start is not None else None
    planned = plan(session, tenant, spec, known, keep=True)
    if checkpoint is not None:
        _check_branch(session, planned.resolved, checkpoint)
    check_queue(session, caller.token_id, queue_limit)
    now = datetime.now(UTC)
    job = Job(
        id=ids.new_id("job"),
        tenant=tenant,
        name=spec.name,
        method=spec.method.name,
        spec=submitted,
        resolved=planned.resolved.model_dump(mode="json"),
        priority=spec.priority,
        tags=dict(spec.tags),
        dataset_id=planned.dataset.id,
        evaluate_dataset_id=planned.evaluate_dataset and planned.evaluate_dataset.id,
        created_at=now,
        token_id=caller.token_id,
        start_checkpoint_id=checkpoint and checkpoint.id,
    )
    lifecycle.enqueue(session, job)
    repository.add_tags(session, job)
    view = JobView.of(job, planned.dataset.name)
    if key is not None:
        answer = {
            "tenant": tenant,
            "key": key,
            "body_hash": body_hash,
            "answer": view.model_dump(mode="json"),
            "created_at": now,
        }
        if not repository.keep_answer(session, answer):
            # Another request with the same key was in flight and has committed: it is the first.
            session.rollback()
            seen = repository.answer_of(session, tenant, key)
            assert seen is not None, "its row was in the way"
            return _answer_again(*seen, body_hash), True
    return view, False


def spec_of_clone(session: Session, tenant: str, job_id: str, changes: dict[str, Any]) -> JobSpec:
    """A job's spec as it was submitted, on the very same data sets, with changes.

    Raises:
        Problem: 404; 422, the changed spec is not one.
    """
    job = get(session, tenant, job_id)
    named: dict[str, Any] = {"dataset": job.dataset_id}
    if job.evaluate_dataset_id is not None:
        named["evaluate"] = {"dataset": job.evaluate_dataset_id}
    spec = _merged(_merged(job.spec, named), changes)
    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        raise spec_problem(field_problems(error, JobSpec)) from error


def start_of_clone(
    session: Session, tenant: str, job_id: str, checkpoint_id: str | None
) -> Checkpoint:
    """The checkpoint of that job to go on from; without an id, its newest.

    Raises:
        Problem: 409, the job has none; 422, there is none of that id.
    """
    if checkpoint_id is None:
        # Not while one is being registered: the one before it may go, and the new one is not to be seen.
        lock_job(session, job_id)
        found = checkpoints.newest_of_job(session, job_id, keep=True)
    else:
        found = checkpoints.get(session, tenant, checkpoint_id, keep=True)
        if found is None or found.job_id != job_id or found.state != checkpoints.REGISTERED:
            damaged = found is not None and found.state == checkpoints.DAMAGED
            message = "is damaged" if damaged else "is not one of this job's"
            raise field_problem("checkpoint", message, checkpoint_id, "id of a checkpoint")
    if found is None:
        raise Problem(
            409,
            "no-checkpoint",
            'The job has no checkpoint yet; wait for one, or start anew with "checkpoint": null '
            "(dasl clone --checkpoint none)",
        )
    return found


def _check_branch(session: Session, resolved: ResolvedJobSpec, start: Checkpoint) -> None:
    source = ResolvedJobSpec.model_validate(repository.by_id(session, start.job_id).resolved)
    problems = branch_problems(source, resolved)
    if resolved.train.epochs <= start.epoch:
        message = f"leaves nothing to do: the checkpoint is of epoch {start.epoch:g}"
        wanted = f"more than {start.epoch:g}"
        problems.append(FieldProblem("train.epochs", message, str(resolved.train.epochs), wanted))
    if problems:
        raise spec_problem(problems)


def _merged(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`spec` with each field of `changes`, and within parts that both have, field by field."""
    merged = dict(spec)
    for field, value in changes.items():
        before = merged.get(field)
        if isinstance(value, dict) and isinstance(before, dict):
            value = _merged(before, value)
        merged[field] = value
    return merged


def get(session: Session, tenant: str, job_id: str) -> Job:
    """A tenant's job.

    Raises:
        Problem: 404.
    """
    return _find(session, tenant, job_id)[0]


def view(session: Session, tenant: str, job_id: str) -> JobView:
    """A tenant's job as the API shows it.

    Raises:
        Problem: 404.
    """
    return JobView.of(*_find(session, tenant, job_id))


def patch(session: Session, job: Job, changes: JobPatch) -> JobView:
    """Change the fields that the request names."""
    lock_job(session, job.id)  # Two concurrent changes of the tags must not mix.
    for field in changes.model_fields_set:
        setattr(job, field, getattr(changes, field))
    session.flush()
    if "tags" in changes.model_fields_set:
        repository.store_tags(session, job)
    return _view(session, job)


def cancel(session: Session, job: Job) -> JobView:
    """Request that a job is cancelled; a repetition changes nothing.

    Raises:
        Problem: 409, it has ended.
    """
    if lifecycle.request_cancel(session, job.id) is None and job.status != "cancelled":
        raise _wrong_state(job, "only a job that has not ended can be cancelled")
    return _view(session, job)


def pause(session: Session, job: Job) -> JobView:
    """Request that a job is paused; a repetition changes nothing.

    Raises:
        Problem: 409, it has ended or is being cancelled.
    """
    if lifecycle.request_pause(session, job.id) is None:
        raise _wrong_state(job, "only a job that goes on can be paused")
    return _view(session, job)


def resume(session: Session, job: Job) -> JobView:
    """Queue a paused job again.

    Raises:
        Problem: 409, it is not paused.
    """
    if lifecycle.request_resume(session, job.id) is None:
        raise _wrong_state(job, "only a paused job can be resumed")
    return _view(session, job)


def _view(session: Session, job: Job) -> JobView:
    """The job as it is now."""
    return view(session, job.tenant, job.id)


def _find(session: Session, tenant: str, job_id: str) -> tuple[Job, str]:
    row = repository.get(session, tenant, job_id) if ids.is_id("job", job_id) else None
    if row is None:
        raise not_found("job", job_id)
    return row[0], row[1]


def _wrong_state(job: Job, rule: str) -> Problem:
    ending = job.desired == Desired.CANCEL and job.status not in TERMINAL
    state = "about to be cancelled" if ending else job.status
    return Problem(
        409, "wrong-state", f"The job is {state}; {rule}", extra={"job_status": job.status}
    )


def _ready_dataset(session: Session, tenant: str, name: str, field: str, keep: bool) -> Dataset:
    dataset = datasets.find(session, tenant, name, keep=keep)
    if dataset is None:
        raise field_problem(field, "is not registered", name, "id or name of a data set")
    if dataset.state == datasets.FAILED:
        why = (dataset.error or {}).get("message", "see its report")
        raise field_problem(
            field, f"could not be ingested: {why}", name, "a data set that is ready"
        )
    if dataset.state != datasets.READY:
        problem = FieldProblem(
            field, f"is {dataset.state}; submit again when it is ready", name, "a ready data set"
        )
        detail = (
            f"{field}: the data set {dataset.name!r} is {dataset.state}; wait until it is ready"
        )
        raise Problem(
            409, "dataset-not-ready", detail, errors=[problem], headers={"Retry-After": "2"}
        )
    return dataset


def _answer_again(seen_hash: str, answer: dict[str, Any], body_hash: str) -> JobView:
    if seen_hash != body_hash:
        raise Problem(
            422,
            "idempotency-key-reused",
            "This Idempotency-Key was used for another job; use a new key for a new job",
        )
    return JobView.model_validate(answer)
