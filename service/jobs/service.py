"""Find and change a tenant's jobs. The caller commits."""

from datetime import timedelta

from sqlalchemy.orm import Session

from dasl_core.spec.versions import UnreadableSpec
from service import ids, lifecycle
from service.api import references
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found, spec_problem
from service.db import rows
from service.db.locks import lock_job
from service.db.models import Job
from service.jobs import repository, tenant_limits
from service.jobs.schemas import JobPatch
from service.jobs.views import job_view
from service.runs import repository as runs
from service.scheduling import capacity
from service.scheduling import repository as scheduling
from service.settings import ClusterLimit
from service.states import TERMINAL, Desired, JobStatus
from service.wire.jobs import JobView


def get(session: Session, tenant: str, job_id: str) -> Job:
    """Return a tenant's job.

    Raises:
        Problem: 404.
    """
    row = repository.get(session, tenant, job_id) if ids.is_id("job", job_id) else None
    if row is None:
        raise not_found("job", job_id)
    return row[0]


def find(session: Session, caller: Caller, reference: str) -> JobView:
    """Return the API's view of the job that a reference matches.

    Args:
        reference: as of `service.db.rows.matching`; `last` is the newest job that the caller's user or token
            has submitted.

    Raises:
        Problem: 404; 409, it matches several jobs, which the answer lists.
    """
    query, is_own = repository.with_dataset(caller.tenant), Job.account_id == caller.account_id
    found = rows.matching(session, query, "job", reference, is_own)
    candidates = [(row[0].id, row[0].name, row[0].status) for row in found]
    references.check_matches_one("job", reference, candidates)
    return job_view(found[0][0], found[0][1])


def patch(session: Session, job: Job, changes: JobPatch, limit: ClusterLimit) -> JobView:
    """Change the fields that the request names.

    Raises:
        Problem: 409, the job has ended and its time limit cannot change, or it may run and its workers cannot;
            422, the workers cannot share its batch or never fit, or a value exceeds a cap of the tenant.
    """
    lock_job(session, job.id)  # Serialize concurrent changes of the tags.
    named = changes.model_fields_set
    tenant_limits.check_caps(
        session,
        job.tenant,
        priority=changes.priority if "priority" in named else None,
        hours=changes.resources.max_hours if "resources" in named else None,
    )
    if "resources" in named:
        workers, hours = changes.resources.workers, changes.resources.max_hours
        if workers is not None:
            _change_workers(session, job, workers, limit)
        if hours is not None and not lifecycle.change_time_limit(session, job, hours):
            raise _wrong_state(job, "its time limit can no longer be changed")
    for field in named - {"resources"}:
        setattr(job, field, getattr(changes, field))
    session.flush()
    if "tags" in named:
        repository.store_tags(session, job)
    return view(session, job)


def _change_workers(session: Session, job: Job, workers: int, limit: ClusterLimit) -> None:
    if job.status in (JobStatus.PAUSED, JobStatus.QUEUED):
        try:
            spec = job.resolved_spec
        except UnreadableSpec as error:
            raise field_problem("resources.workers", str(error), workers, "a spec") from error
        micro_batches, batch = spec.train.micro_batches, spec.train.batch_size
        if batch % (workers * micro_batches):
            shared = f" x {micro_batches} micro-batches" if micro_batches > 1 else ""
            message = f"cannot share the global batch of {batch} evenly: {workers}{shared}"
            expected = "a divisor of train.batch_size / train.micro_batches"
            raise field_problem("resources.workers", message, workers, expected)
        finetune = spec.evaluate.finetune
        if finetune and finetune.batch_size < workers:
            message = f"exceeds evaluate.finetune.batch_size ({finetune.batch_size}): some ranks would have no image"
            expected = f"at most {finetune.batch_size}"
            raise field_problem("resources.workers", message, workers, expected)
        room = capacity.check_capacity(
            session,
            spec.resources.model_copy(update={"workers": workers}),
            limit,
            max_gpus=scheduling.max_gpus(session, job.tenant, job.token_id),
        )
        if room.problems:
            raise spec_problem(room.problems)
    if not lifecycle.change_workers(session, job, workers):
        raise _wrong_state(
            job, "pause it first: only a paused or queued job can change its workers"
        )


def cancel(session: Session, job: Job) -> JobView:
    """Request that a job is cancelled. Idempotent.

    Raises:
        Problem: 409, it has ended.
    """
    if lifecycle.request_cancel(session, job.id) is None and job.status != "cancelled":
        raise _wrong_state(job, "only a job that has not ended can be cancelled")
    return view(session, job)


def pause(session: Session, job: Job) -> JobView:
    """Request that a job is paused. Idempotent.

    Raises:
        Problem: 409, it has ended or is being cancelled.
    """
    if lifecycle.request_pause(session, job.id) is None:
        raise _wrong_state(
            job, "only a job that has not ended and is not being cancelled can be paused"
        )
    return view(session, job)


def resume(session: Session, job: Job) -> JobView:
    """Queue a paused job again.

    Raises:
        Problem: 409, it is not paused, or has used up its time limit.
    """
    _check_time_left(session, job)
    if lifecycle.request_resume(session, job.id) is None:
        raise _wrong_state(job, "only a paused job can be resumed")
    return view(session, job)


def _check_time_left(session: Session, job: Job) -> None:
    try:
        limit = job.time_limit
    except UnreadableSpec:  # let it wait in the queue for a server that can read it
        return
    used = runs.time_used(session, job.id)
    if job.status != JobStatus.PAUSED or used < limit:
        return
    hour = timedelta(hours=1)
    detail = (
        f"The job has run for {used / hour:.1f} hours, and resources.max_hours is {limit / hour:g}. "
        f"Raise it first: dasl update {job.id} --max-hours HOURS"
    )
    raise Problem(409, "time-limit-reached", detail)


def view(session: Session, job: Job) -> JobView:
    """Return the view of a job after a change."""
    row = repository.get(session, job.tenant, job.id)
    assert row is not None, "its row is locked"
    return job_view(row[0], row[1])


def _wrong_state(job: Job, rule: str) -> Problem:
    is_cancelling = job.desired == Desired.CANCEL and job.status not in TERMINAL
    state = "about to be cancelled" if is_cancelling else job.status
    return Problem(
        409, "wrong-state", f"The job is {state}; {rule}", extra={"job_status": job.status}
    )
