"""Lifecycle of a job: the only code that changes a job's status.

Every transition is a guarded UPDATE (it names the old status and the attempt) and writes its event, and the
messages of webhooks about it, in the same transaction. The first transaction to commit wins; any other gets
`False` or `None` and discards its result. A terminal status never changes, and the event of the transition to
it is the last event of the job. The caller commits.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from dasl_core.spec import precision_with
from dasl_core.spec.versions import UnreadableSpec
from service.checkpoints import repository as checkpoints
from service.checkpoints import resume_point, retention
from service.db.locks import lock_job
from service.db.models import Attempt, Base, Event, Job
from service.events.levels import WITHOUT_GPUS
from service.ledger import repository as ledger
from service.outbox import repository as outbox
from service.outbox.messages import JOB_EVENTS
from service.runs import liveness
from service.runs import repository as runs
from service.runs.endings import Ending, Retry, charge
from service.scheduling import repository as scheduling
from service.scheduling.automatic import Automatic
from service.scheduling.packing import Worker
from service.states import (
    LIVE_ATTEMPT,
    TERMINAL,
    TRANSITIONS,
    AttemptState,
    Desired,
    JobStatus,
    StaleAttempt,
    StopReason,
)

Data = dict[str, Any]

# Tables instead of ORM objects, whose change tracking costs most of the time of an insert.
_JOBS, _EVENTS = (Base.metadata.tables[row.__tablename__] for row in (Job, Event))
_ADD_JOB, _ADD_EVENT = insert(_JOBS), insert(_EVENTS)

# How an attempt ended that the service stopped and whose job is queued again.
_CAUSES = {
    StopReason.SHUTDOWN: "ended as the service was stopped",
    StopReason.DRAIN: "ended as a node of its ranks is drained",
    StopReason.PREEMPTED: "gave way to another job",
    StopReason.OTHER: "was stopped by the service",
}
_AT_TIME_LIMIT = "Its attempts ran for as long as resources.max_hours allows"

_WHY = {
    StopReason.SHUTDOWN: "The service is being stopped",
    StopReason.DRAIN: "A node of its ranks is drained",
}


def enqueue(session: Session, job: Job) -> None:
    """Store a new job as queued, with its first event. `job` is not added to the session."""
    job.status, job.desired = JobStatus.QUEUED, Desired.RUN
    job.attempt = job.restarts = job.infrastructure_failures = 0
    job.next_event, job.queued_at = 2, job.created_at
    values = {column.key: getattr(job, column.key) for column in _JOBS.columns}
    # Columns without a value get their default.
    row = {name: value for name, value in values.items() if value is not None}
    session.execute(_ADD_JOB, row)
    data = {"from": None, "to": JobStatus.QUEUED, "attempt": 0}
    _add_event(session, job.id, 1, job.created_at, "status", "Job queued", data)
    outbox.add_job_event(session, job, "status", "Job queued", job.created_at)


def start_attempt(
    session: Session,
    job_id: str,
    token_hash: str,
    workers: int | None = None,
    avoided: Collection[str] = (),
    worker: Worker | None = None,
) -> Attempt | None:
    """Move a queued job to starting and add its next attempt, which is not submitted yet.

    The attempt resumes from the newest registered checkpoint, or from the checkpoint that the job was cloned from.

    Args:
        workers: its number of ranks; `None`: the job's number of workers.
        avoided: ids of nodes that get none of its ranks, because the last attempt failed there.
        worker: the resources of a rank in place of "auto", for this attempt and all later ones; by default the
            smallest.

    Returns:
        The attempt; `None` if the job is no longer queued, a pause or cancellation was requested, or the job must not
        run with this number of workers.
    """
    job = lock_job(session, job_id)
    if job is None or job.status != JobStatus.QUEUED or job.desired != Desired.RUN:
        return None
    number = job.attempt + 1
    resume = resume_point.find(session, job)
    resume_id = resume.id if resume is not None else None
    data: Data = {"attempt": number, "resume_checkpoint_id": resume_id}
    message = f"Attempt {number} is starting"
    workers = workers if workers is not None else job.workers
    if workers is not None and workers != (wanted := job.workers or job.resources.workers):
        if workers > wanted or job.resources.min_workers is None:
            return None  # `resources.workers` was changed after the decision.
        message += f" with {workers} of {wanted} ranks"
        data["workers"] = workers
    decided = _decided(job, worker)
    if decided:
        message += f" ({'; '.join(f'{name}: {number}' for name, number in decided.items())})"
        data |= decided
    if resume is not None:
        message += f" from step {resume.step} (checkpoint {resume.id})"
    if avoided:
        nodes = ", ".join(scheduling.addresses(session, avoided))
        message += f". It avoids {nodes}, where the last attempt failed before its first step"
        data[scheduling.AVOIDED] = sorted(avoided)
    columns = {
        "progress": resume_point.progress_at(job, resume),
        "verdict": resume_point.verdict_at(job, resume),
    }
    if decided:
        columns["resolved"] = _completed(job, decided)
    if not _move(session, job, JobStatus.STARTING, message, data, attempt=number, **columns):
        return None
    if worker is not None and decided.get("gpus_per_worker") == 0:
        has_gpus = scheduling.last_cluster(session).total_gpus > 0
        about = {"cluster": "with_gpus" if has_gpus else WITHOUT_GPUS}
        append_event(session, job_id, "no_gpus", _why_no_gpus(session, job), about)
    return runs.add(
        session,
        Attempt,
        job_id,
        number,
        token_hash,
        resume_checkpoint_id=resume_id,
        workers=workers,
    )


def _why_no_gpus(session: Session, job: Job) -> str:
    """Explain why the ranks of a job get no GPUs although its spec allows them, and what to do."""
    if scheduling.max_gpus(session, job.tenant, job.token_id) == 0:
        why, remedy = "max_gpus of its token or tenant is 0", "Once that is raised"
    else:
        why = (
            "no node that it may use had a GPU for its ranks when it was submitted, or has one now"
        )
        remedy = "Once there are GPUs"
    return (
        f"All attempts of the job train on CPUs, because {why}. {remedy}, clone it with "
        "resources.gpus_per_worker: 1 and train.precision: auto to train on them"
    )


def _decided(job: Job, worker: Worker | None) -> dict[str, int]:
    """Return the values of a first attempt in place of "auto", by setting; empty for later attempts."""
    automatic = Automatic.from_resources(job.resources)
    worker = worker or Worker.from_resources(job.resources)
    decided = {"cpus_per_worker": worker.cpus} if automatic.cpus else {}
    return decided | ({"gpus_per_worker": worker.gpus} if automatic.gpus else {})


def _completed(job: Job, decided: dict[str, int]) -> Data:
    """Return a job's resolved spec with the numbers that its first attempt decides, and the precision for its GPUs."""
    resolved = {**job.resolved, "resources": {**job.resolved["resources"], **decided}}
    gpus = decided.get("gpus_per_worker")
    if gpus is not None and (job.spec.get("train") or {}).get("precision", "auto") == "auto":
        resolved["train"] = {**resolved["train"], "precision": precision_with(gpus > 0)}
    return resolved


def resume_from_another(
    session: Session, job: Job, attempt: Attempt, checkpoint_id: str, damage: str
) -> None:
    """Mark an attempt's resume checkpoint as damaged and choose another one.

    The checkpoint is never used again. The attempt resumes from the previous one, or starts from scratch if there
    is none. A clone's start checkpoint has no fallback, because resuming elsewhere would be a different experiment:
    it stays, and the attempt must fail. Idempotent. Both rows must be locked (`lock_live_attempt`).
    """
    if attempt.resume_checkpoint_id != checkpoint_id:
        return
    checkpoints.mark_damaged(session, checkpoint_id)
    resume = resume_point.find(session, job)
    attempt.resume_checkpoint_id = instead = resume.id if resume is not None else None
    job.progress = resume_point.progress_at(job, resume)
    job.verdict = resume_point.verdict_at(job, resume)
    session.flush()
    message = f"Checkpoint {checkpoint_id} is damaged: {damage}"
    if resume is None:
        message += ". The training starts from scratch"
    elif instead != checkpoint_id:
        message += f". The attempt resumes from step {resume.step} (checkpoint {instead})"
    data = {"id": checkpoint_id, "damage": damage, "resume_checkpoint_id": instead}
    append_event(session, job.id, "checkpoint_damaged", message, data)


def mark_running(session: Session, job_id: str, number: int) -> None:
    """Move an attempt and its job to running, at the worker's first report. Idempotent.

    Raises:
        StaleAttempt: the attempt is not the job's newest, or has ended.
    """
    job, attempt = lock_live_attempt(session, job_id, number)
    now = datetime.now(UTC)
    if attempt.state != AttemptState.RUNNING:
        before = attempt.ran_seconds
        attempt.ran_seconds = max(now - attempt.created_at, timedelta()).total_seconds()
        _add_use(session, job, attempt, attempt.ran_seconds - before, now)
        runs.move(session, Attempt, job_id, number, AttemptState.RUNNING)
    if job.status == JobStatus.STARTING:
        started = job.started_at or now
        _move(session, job, JobStatus.RUNNING, f"Attempt {number} is running", started_at=started)


def finish_attempt(session: Session, job_id: str, number: int, ending: Ending) -> JobStatus | None:
    """End an attempt; then end its job, pause it, or let it wait for a retry.

    A failed or lost attempt is retried as `ending.retry` says. After a request to cancel, the job ends cancelled for
    any ending, unless the attempt succeeded before the cancellation began. After a request to pause, the job is
    paused instead of retried.

    Returns:
        The job's new status, or `None` if the attempt had already ended (the result is discarded).
    """
    job = lock_job(session, job_id)
    if job is None or job.attempt != number or JobStatus(job.status) in TERMINAL:
        return None
    outcome = ending.outcome
    if not runs.move(session, Attempt, job_id, number, AttemptState(outcome), error=ending.error):
        return None
    # The checkpoint that the attempt resumed from is no longer in use.
    retention.mark_obsolete(session, job)
    if outcome == "succeeded" and job.status != JobStatus.CANCELLING:
        if job.status == JobStatus.STARTING:
            _move(session, job, JobStatus.RUNNING, f"Attempt {number} is running")
        return _end(session, job, JobStatus.SUCCEEDED, "Job succeeded", error=None)
    killed = ". It had to be killed and will repeat the steps after its last checkpoint"
    note = killed if ending.forced else ""
    if outcome == "paused" and job.desired == Desired.PAUSE:
        return _pause(session, job, "Job paused" + note)
    if job.desired == Desired.CANCEL or outcome == "cancelled":
        if job.status != JobStatus.CANCELLING:
            _move(session, job, JobStatus.CANCELLING, "Job is being cancelled")
        return _end(session, job, JobStatus.CANCELLED, "Job cancelled")
    attempt = session.get_one(Attempt, (job.id, number), populate_existing=True)
    stop_reason = StopReason(attempt.stop_reason) if attempt.stop_reason else None
    if outcome == "paused" and stop_reason == StopReason.TIME_LIMIT:
        return _pause_at_time_limit(session, job, note)
    if outcome == "paused" and stop_reason is not None:
        message = f"Job queued again. Attempt {number} {_CAUSES[stop_reason]}{note}"
        _move(session, job, JobStatus.QUEUED, message)
        return JobStatus.QUEUED
    return _retry_or_fail(session, job, ending, stop_reason)


def _retry_or_fail(
    session: Session, job: Job, ending: Ending, stop_reason: StopReason | None
) -> JobStatus | None:
    """Pause, fail or retry a job after its newest attempt failed or was lost."""
    error, retry = ending.error, ending.retry
    if stop_reason in _CAUSES and retry != Retry.NEVER:
        retry = Retry.FREE  # the service made it stop
    message = str((error or {}).get("message") or f"Attempt {job.attempt} was {ending.outcome}")
    reason = message.removesuffix(".")  # It becomes part of a sentence.
    if retry == Retry.FREE and _is_third_alike(session, job, error or {}):
        retry = Retry.FREE_LATER
    is_charged = retry in (Retry.INFRASTRUCTURE, Retry.OUTAGE)
    progressed = is_charged and _made_progress(session, job)
    budget = charge(
        retry,
        restarts=job.restarts,
        max_restarts=_max_restarts(job),
        failures=job.infrastructure_failures,
        progressed=progressed,
    )
    ended = f"Attempt {job.attempt} {ending.outcome}: {reason}"
    counts = {
        "restarts": budget.restarts,
        "infrastructure_failures": budget.infrastructure_failures,
    }
    # Check it before the budget: a job that should be paused must stay resumable, even if it could not save.
    if job.desired == Desired.PAUSE and retry != Retry.NEVER:
        message = f"{ended}. Job paused"
        return _pause(session, job, message, {"error": error}, error=error, **counts)
    if stop_reason == StopReason.TIME_LIMIT and retry != Retry.NEVER:
        return _pause_at_time_limit(session, job, f". {ended}", **counts)
    if retry == Retry.UNLESS_REPEATED and _is_repeated(session, job, error or {}):
        message = f"Job failed (same error twice in a row, without a step in between): {reason}"
        return _end(session, job, JobStatus.FAILED, message, error=error)
    if budget.used_up is not None:
        message = f"Job failed{budget.used_up}: {reason}"
        return _end(session, job, JobStatus.FAILED, message, error=error)
    not_before = datetime.now(UTC) + budget.delay
    message, data = f"{ended}. {budget.message}", {"error": error}
    _move(session, job, JobStatus.RETRY_WAIT, message, data, not_before=not_before, **counts)
    return JobStatus.RETRY_WAIT


def _made_progress(session: Session, job: Job) -> bool:
    """Whether the newest attempt registered a checkpoint, or got further than earlier attempts."""
    job_id, number = job.id, job.attempt
    return bool(checkpoints.attempt_uris(session, job_id, number)) or (
        runs.last_step(session, job_id, number) > runs.last_step_before(session, job_id, number)
    )


def count_adopted_progress(session: Session, job: Job, number: int) -> None:
    """Reset the count of infrastructure failures to one, because a checkpoint of the newest attempt was adopted.

    The failure that ended the attempt is the first one after that progress. The job must be locked.
    """
    if job.attempt == number and job.infrastructure_failures > 1:
        job.infrastructure_failures = 1
        session.flush()


def _max_restarts(job: Job) -> int | None:
    """Return the limit of the job's restarts; `None` if its spec cannot be read.

    Such a job is always queued again, for a dispatcher that can read it.
    """
    try:
        return job.resources.max_restarts
    except UnreadableSpec:
        return None


def _is_repeated(session: Session, job: Job, error: Data) -> bool:
    """Whether the previous attempt failed with the same error and the newest one made no progress.

    If both ran on the same node and the job could run on others, a broken GPU or disk may be the cause.
    """
    job_id, number = job.id, job.attempt
    previous = session.get(Attempt, (job_id, number - 1))
    previous_error = (previous.error if previous is not None else None) or {}
    if any(previous_error.get(key) != error.get(key) for key in ("type", "message")):
        return False
    if runs.last_step(session, job_id, number) > runs.last_step(session, job_id, number - 1):
        return False
    return not scheduling.could_run_elsewhere(session, job, number)


def _is_third_alike(session: Session, job: Job, error: Data) -> bool:
    """Whether the three newest attempts ended with errors of one type, the last two without progress."""
    job_id, number = job.id, job.attempt
    earlier = [session.get(Attempt, (job_id, number - back)) for back in (1, 2)]
    kinds = {(item.error or {}).get("type") if item is not None else None for item in earlier}
    if kinds != {error.get("type")}:
        return False
    return runs.last_step(session, job_id, number) <= runs.last_step(session, job_id, number - 2)


def requeue(session: Session, job_id: str) -> bool:
    """Move a job from retry_wait to queued. The caller checks that its waiting time is over."""
    job = lock_job(session, job_id)
    if job is None or job.status != JobStatus.RETRY_WAIT:
        return False
    return _move(session, job, JobStatus.QUEUED, "Job queued again", not_before=None)


def request_pause(session: Session, job_id: str) -> JobStatus | None:
    """Pause a job: immediately if no attempt is live, otherwise by setting its desired state.

    Returns:
        The new status; `None` if the job is terminal, is being cancelled, or does not exist.
    """
    job = lock_job(session, job_id)
    if job is None or JobStatus(job.status) in TERMINAL or job.desired == Desired.CANCEL:
        return None
    _request(session, job, Desired.PAUSE)
    if job.status in (JobStatus.QUEUED, JobStatus.RETRY_WAIT):
        return _pause(session, job, "Job paused")
    return JobStatus(job.status)


def request_resume(session: Session, job_id: str) -> JobStatus | None:
    """Move a paused job to queued; its next attempt resumes from the newest checkpoint.

    Returns:
        The new status; `None` if the job is not paused or does not exist.
    """
    job = lock_job(session, job_id)
    if job is None or job.status != JobStatus.PAUSED:
        return None
    job.desired = Desired.RUN
    session.flush()
    _move(session, job, JobStatus.QUEUED, "Job resumed", error=None)
    return JobStatus.QUEUED


def request_stop(
    session: Session, job_id: str, number: int, reason: StopReason, why: str = ""
) -> bool:
    """Request, for the service, that a live attempt saves a checkpoint and stops.

    The reason decides what happens to the job. The first request of an attempt counts, but requests of people take
    precedence. `why` is a sentence for the job's owner, without a full stop; not needed for a shutdown or drain.
    """
    job, attempt = _lock(session, job_id, number)
    if job is None or attempt is None or job.attempt != number or job.desired != Desired.RUN:
        return False
    if attempt.stop_reason is not None or attempt.state not in LIVE_ATTEMPT:
        return False
    attempt.stop_reason, attempt.stop_requested_at = reason, datetime.now(UTC)
    session.flush()
    if reason == StopReason.TIME_LIMIT:
        message = f"Job is being paused. {_AT_TIME_LIMIT}"
        return _move(session, job, JobStatus.PAUSING, message)
    message = f"{why or _WHY[reason]}. Attempt {number} saves a checkpoint"
    append_event(session, job_id, "stop-requested", message, {"attempt": number, "reason": reason})
    return True


def desired_state(job: Job, attempt: Attempt) -> Desired:
    """Return the desired state of an attempt: requested by a person, or else by the service."""
    desired = Desired(job.desired)
    return Desired.PAUSE if desired == Desired.RUN and attempt.stop_reason else desired


def change_time_limit(session: Session, job: Job, hours: float) -> bool:
    """Replace the time limit of a job; return `False` if it has ended. The job must be locked."""
    if JobStatus(job.status) in TERMINAL:
        return False
    job.max_hours = hours
    session.flush()
    message = f"resources.max_hours is {hours:g} now"
    append_event(session, job.id, "max-hours-changed", message, {"max_hours": hours})
    return True


def change_workers(session: Session, job: Job, workers: int) -> bool:
    """Replace the number of workers of a job; return `False` if an attempt may be live. The job must be locked."""
    if job.status not in (JobStatus.PAUSED, JobStatus.QUEUED):
        return False
    job.workers = workers
    session.flush()
    message = f"resources.workers is {workers} now"
    append_event(session, job.id, "workers-changed", message, {"workers": workers})
    return True


def request_cancel(session: Session, job_id: str) -> JobStatus | None:
    """Cancel a job: immediately if no attempt is live, otherwise by setting its desired state.

    Returns:
        The new status; `None` if the job is terminal or does not exist.
    """
    job = lock_job(session, job_id)
    if job is None or JobStatus(job.status) in TERMINAL:
        return None
    _request(session, job, Desired.CANCEL)
    if job.status in (JobStatus.QUEUED, JobStatus.RETRY_WAIT, JobStatus.PAUSED):
        return _end(session, job, JobStatus.CANCELLED, "Job cancelled", error=None)
    return JobStatus(job.status)


def _request(session: Session, job: Job, desired: Desired) -> None:
    if job.desired != desired:
        job.desired = desired
        session.flush()
        append_event(session, job.id, f"{desired}-requested", f"{desired.capitalize()} requested")


def start_stopping(session: Session, job_id: str) -> bool:
    """Move a job with a live attempt to cancelling or pausing, if a person requested that."""
    job = lock_job(session, job_id)
    if job is None or job.desired == Desired.RUN:
        return False
    to, participle = {
        Desired.CANCEL: (JobStatus.CANCELLING, "cancelled"),
        Desired.PAUSE: (JobStatus.PAUSING, "paused"),
    }[Desired(job.desired)]
    live = {JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING}
    if job.status not in live - {to}:
        return False
    return _move(session, job, to, f"Job is being {participle}")


def _lock(session: Session, job_id: str, number: int) -> tuple[Job | None, Attempt | None]:
    job = lock_job(session, job_id)
    return job, session.get(Attempt, (job_id, number), populate_existing=True)


def lock_live_attempt(session: Session, job_id: str, number: int) -> tuple[Job, Attempt]:
    """Lock a job and its attempt for a request of that attempt.

    Raises:
        StaleAttempt: the attempt is not the job's newest, or has ended.
    """
    job, attempt = _lock(session, job_id, number)
    if job is None or attempt is None or job.attempt != number:
        raise StaleAttempt(f"attempt {number} of {job_id} was superseded")
    if JobStatus(job.status) in TERMINAL or AttemptState(attempt.state) not in LIVE_ATTEMPT:
        raise StaleAttempt(f"attempt {number} of {job_id} is over")
    return job, attempt


def record_heartbeat(session: Session, job: Job, attempt: Attempt, progress: Data) -> None:
    """Record a heartbeat and merge the reported progress; both rows are locked (`lock_live_attempt`).

    Only rank 0 reports progress; a heartbeat without progress comes from the driver. After rank 0's first report, a
    driver's heartbeat only shows that the attempt is alive: a silent rank 0 may train normally and only fail to
    reach the API.
    """
    now = datetime.now(UTC)
    last_report = attempt.progress_reported_at or attempt.heartbeat_at
    before = attempt.ran_seconds
    liveness.record_heartbeat(attempt, now)
    _add_use(session, job, attempt, attempt.ran_seconds - before, now)
    if not progress and attempt.progress_reported_at is not None:
        return
    # Keep the previous values of missing fields, as before the first step.
    merged = {**resume_point.lasting_progress(job), **progress}
    # Without reports nothing is known about progress, so a long silence is not a standstill.
    silent = last_report is None or not timedelta() <= now - last_report < liveness.MAX_SILENCE
    if silent or (progress and merged != job.progress):
        attempt.progressed_at = now
    if progress:
        attempt.progress_reported_at = now
        job.progress = merged


def _add_use(session: Session, job: Job, attempt: Attempt, seconds: float, now: datetime) -> None:
    workers = attempt.workers if attempt.workers is not None else job.workers
    demand = scheduling.job_demand(session, job.id, workers)
    ledger.add(session, job, now, seconds * demand.gpus, seconds * demand.cpus)


def append_event(
    session: Session, job_id: str, type: str, message: str, data: Data | None = None
) -> int | None:
    """Add an event without a change of status; return its sequence number, `None` if the job is terminal."""
    after = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.status.not_in(TERMINAL))
        .values(next_event=Job.next_event + 1)
        .returning(Job.next_event)
    ).scalar()
    if after is None:
        return None
    now = datetime.now(UTC)
    _add_event(session, job_id, after - 1, now, type, message, data or {})
    if type in JOB_EVENTS:
        outbox.add_job_event(session, session.get_one(Job, job_id), type, message, now)
    return after - 1


def attach_log_tail(session: Session, job_id: str, number: int, lines: list[str]) -> None:
    """Add the last lines of an attempt's log to its error, and to the job's error if that is equal.

    This is a separate step, because a driver's log is complete only after the attempt has ended.
    """
    job, attempt = _lock(session, job_id, number)
    if job is None or attempt is None:
        return
    if attempt.error is not None:
        attempt.error = {**attempt.error, "log_tail": lines}
    if job.error is not None and job.attempt == number:
        job.error = {**job.error, "log_tail": lines}
    session.flush()


def _move(
    session: Session,
    job: Job,
    to: JobStatus,
    message: str,
    data: Data | None = None,
    **columns: Any,
) -> bool:
    source = JobStatus(job.status)
    assert to in TRANSITIONS[source], f"no transition {source} -> {to}"
    now = datetime.now(UTC)
    if to == JobStatus.QUEUED:
        columns["queued_at"] = now
    after = session.execute(
        update(Job)
        .where(Job.id == job.id, Job.status == source, Job.attempt == job.attempt)
        .values(status=to, next_event=Job.next_event + 1, **columns)
        .returning(Job.next_event)
    ).scalar()
    if after is None:
        return False
    session.refresh(job)
    data = {"from": source, "to": to, "attempt": job.attempt, **(data or {})}
    _add_event(session, job.id, after - 1, now, "status", message, data)
    outbox.add_job_event(session, job, "status", message, now)
    return True


def _pause(
    session: Session, job: Job, message: str, data: Data | None = None, **columns: Any
) -> JobStatus | None:
    if job.status in (JobStatus.STARTING, JobStatus.RUNNING):
        _move(session, job, JobStatus.PAUSING, "Job is being paused")
    moved = _move(session, job, JobStatus.PAUSED, message, data, not_before=None, **columns)
    return JobStatus.PAUSED if moved else None


def _pause_at_time_limit(session: Session, job: Job, note: str, **columns: Any) -> JobStatus | None:
    message = f"{_AT_TIME_LIMIT}. Raise the limit to resume it"
    error = {"type": "max-hours", "message": message}
    moved = _pause(
        session, job, f"Job paused. {message}{note}", {"error": error}, error=error, **columns
    )
    attempt = session.get_one(Attempt, (job.id, job.attempt), populate_existing=True)
    attempt.error = attempt.error or error
    attempt.error_type = runs.error_type(attempt.error)
    session.flush()
    return moved


def _end(
    session: Session, job: Job, to: JobStatus, message: str, **columns: Any
) -> JobStatus | None:
    data = {"error": columns["error"]} if columns.get("error") else {}
    moved = _move(session, job, to, message, data, finished_at=datetime.now(UTC), **columns)
    if not moved:
        return None
    retention.mark_obsolete_start(session, job)
    return to


def _add_event(
    session: Session, job_id: str, seq: int, at: datetime, type: str, message: str, data: Data
) -> None:
    row = {"job_id": job_id, "seq": seq, "at": at, "type": type, "message": message, "data": data}
    session.execute(_ADD_EVENT, row)
