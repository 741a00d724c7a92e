"""Check of the invariants that every job must satisfy after any kills, in tables and files."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Attempt, Checkpoint, Event, Job, Metric
from service.db.session import Database
from service.object_store import open_store
from service.states import LIVE_ATTEMPT, TERMINAL, TRANSITIONS, JobStatus

FINAL_WEIGHTS = "training_state.safetensors"


def violations(
    database: Database,
    accepted: Mapping[str, str],
    steps: Mapping[str, int],
    forgotten: Mapping[str, range] | None = None,
) -> list[str]:
    """Return one sentence for each violation; none if nothing was lost or done twice.

    Args:
        accepted: the job id that the API returned, by idempotency key.
        steps: number of training steps, by job.
        forgotten: steps among which those are whose loss went with a replaced database, by job. These must follow
            one another.
    """
    problems: list[str] = []
    with database.read() as session:
        jobs = {job.id: job for job in session.scalars(select(Job))}
        for key, job_id in accepted.items():
            if job_id not in jobs:
                problems.append(f"{job_id}: accepted as {key}, and lost")
        problems += [
            f"{job_id}: was never submitted" for job_id in jobs.keys() - {*accepted.values()}
        ]
        for job in jobs.values():
            problems += [
                f"{job.id}: {violation}"
                for violation in _job_violations(
                    session, job, steps.get(job.id), (forgotten or {}).get(job.id, range(0))
                )
            ]
    return problems


def seconds_at_risk(database: Database) -> float:
    """Return the most seconds of training that an attempt did after the checkpoint that was resumed."""
    most = 0.0
    with database.read() as session:
        attempts = session.scalars(select(Attempt).order_by(Attempt.job_id, Attempt.number)).all()
        for before, after in itertools.pairwise(attempts):
            if before.job_id != after.job_id:
                continue
            resumed = session.get(Checkpoint, after.resume_checkpoint_id or "")
            times = session.scalars(
                select(Metric.time).where(
                    Metric.job_id == before.job_id,
                    Metric.name == "loss",
                    Metric.attempt == before.number,
                    Metric.step >= (resumed.step if resumed is not None else 0),
                )
            ).all()
            most = max(most, max(times, default=0.0) - min(times, default=0.0))
    return most


def weight_differences(database: Database, kinds: Mapping[str, str]) -> list[str]:
    """Return one sentence for each job whose final weights differ from those of the first job of its kind.

    Jobs of one kind compute the same, on CPUs bit for bit, however often each was interrupted.

    Args:
        kinds: kind by job.
    """
    weights: defaultdict[str, dict[str, str]] = defaultdict(dict)
    with database.read() as session:
        for checkpoint in session.scalars(select(Checkpoint).where(Checkpoint.final)):
            by_name = {file["name"]: file["sha256"] for file in checkpoint.files}
            if checkpoint.job_id in kinds:
                weights[kinds[checkpoint.job_id]][checkpoint.job_id] = by_name[FINAL_WEIGHTS]
    problems = []
    for kind, by_job in weights.items():
        first, *others = by_job.items()
        problems += [
            f"{job_id}: final weights differ from those of {first[0]}, of the same kind ({kind})"
            for job_id, sha256 in others
            if sha256 != first[1]
        ]
    return problems


def _job_violations(
    session: Session, job: Job, steps: int | None, forgotten: range
) -> Iterator[str]:
    events = session.scalars(select(Event).where(Event.job_id == job.id).order_by(Event.seq)).all()
    attempts = session.scalars(
        select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number)
    ).all()
    checkpoints = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.id)
    ).all()
    metrics = session.scalars(
        select(Metric).where(Metric.job_id == job.id, Metric.name == "loss")
    ).all()
    yield from _event_violations(job, list(events))
    yield from _attempt_violations(job, list(attempts))
    started_at = {attempt.number: attempt.created_at.timestamp() for attempt in attempts}
    for metric in metrics:
        if metric.time > started_at.get(metric.attempt + 1, metric.time):
            yield f"attempt {metric.attempt} trained step {metric.step} after the next one began"
    unreported = _unreported_steps(list(events), list(attempts), list(checkpoints))
    reported = {metric.step for metric in metrics}
    if steps is not None:
        missing = set(range(1, steps + 1)) - reported - unreported
        one_gap = not missing or max(missing) - min(missing) + 1 == len(missing)
        if not (missing <= set(forgotten) and one_gap and reported <= set(range(1, steps + 1))):
            yield f"the loss is missing for some of its {steps} steps"
    yield from _checkpoint_violations(list(attempts), list(checkpoints), started_at)


def _unreported_steps(
    events: list[Event], attempts: list[Attempt], checkpoints: list[Checkpoint]
) -> set[int]:
    """Return the steps that are not repeated although their loss may not have been reported.

    An attempt trained them before a checkpoint that it could not report either, and that was adopted.
    """
    adopted = {event.data["id"] for event in events if event.data.get("adopted")}
    step_of = {checkpoint.id: checkpoint.step for checkpoint in checkpoints}
    began = {
        attempt.number: step_of.get(attempt.resume_checkpoint_id or "", 0) for attempt in attempts
    }
    return {
        step
        for checkpoint in checkpoints
        if checkpoint.id in adopted
        for step in range(began[checkpoint.attempt] + 1, checkpoint.step + 1)
    }


def _event_violations(job: Job, events: list[Event]) -> Iterator[str]:
    if [event.seq for event in events] != list(range(1, job.next_event)):
        yield "the sequence numbers of its events have gaps"
    transitions = [event.data for event in events if event.type == "status"]
    for before, after in itertools.pairwise(transitions):
        if (
            after["from"] != before["to"]
            or after["to"] not in TRANSITIONS[JobStatus(after["from"])]
        ):
            yield f"changed its status from {before['to']} by {after}"
    ends = [event for event in events if event.data.get("to") in TERMINAL]
    if len(ends) != 1 or ends[0] is not events[-1]:
        yield f"has {len(ends)} terminal transitions, and its last event is {events[-1].type}"
    if job.status != JobStatus.SUCCEEDED:
        yield f"ended as {job.status}: {job.error}"


def _attempt_violations(job: Job, attempts: list[Attempt]) -> Iterator[str]:
    if [attempt.number for attempt in attempts] != list(range(1, job.attempt + 1)):
        yield "the numbers of its attempts have gaps"
    for attempt in attempts:
        if attempt.state in LIVE_ATTEMPT or attempt.finished_at is None:
            yield f"attempt {attempt.number} is still {attempt.state}"
    for before, after in itertools.pairwise(attempts):
        if before.finished_at is None or before.finished_at > after.created_at:
            yield f"attempt {after.number} began before attempt {before.number} was over"
    succeeded = [attempt.number for attempt in attempts if attempt.state == "succeeded"]
    if succeeded != [job.attempt]:
        yield f"attempts {succeeded} succeeded instead of only the last, {job.attempt}"


def _checkpoint_violations(
    attempts: list[Attempt], checkpoints: list[Checkpoint], started_at: Mapping[int, float]
) -> Iterator[str]:
    for checkpoint in checkpoints:
        if checkpoint.state == "registered":
            yield from _file_violations(checkpoint, started_at.get(checkpoint.attempt + 1))
        elif checkpoint.final or checkpoint.epoch.is_integer():
            # Those within an epoch are removed once there are two newer ones.
            yield f"checkpoint {checkpoint.id} is {checkpoint.state}"
    if [checkpoint.final for checkpoint in checkpoints].count(True) != 1:
        yield "does not have exactly one final checkpoint"
    for attempt in attempts:
        earlier = [c for c in checkpoints if c.attempt < attempt.number]
        newest = max(earlier, key=lambda c: (c.step, c.id), default=None)
        if attempt.resume_checkpoint_id != (newest and newest.id):
            yield f"attempt {attempt.number} did not resume from the newest checkpoint"


def _file_violations(checkpoint: Checkpoint, next_start: float | None) -> Iterator[str]:
    for entry in checkpoint.files:
        store, path = open_store(f"{checkpoint.uri}/{entry['name']}")
        if not store.isfile(path):
            yield f"checkpoint {checkpoint.id}: {entry['name']} is missing"
            continue
        content = store.cat_file(path)
        if len(content) != entry["size"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
            yield f"checkpoint {checkpoint.id}: {entry['name']} differs from the registered file"
        written = store.info(path).get("mtime")  # S3 knows it to the second only
        if None not in (written, next_start) and written > next_start:
            yield f"checkpoint {checkpoint.id} was written after the next attempt began"
