"""Commands that show what is known of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import connect
from service.cli.names import JobId
from service.cli.output import (
    AsJson,
    clean,
    duration,
    figure,
    note,
    plain,
    print_facts,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from service.client import Client
    from service.client.models import Evaluation, Job

_SUBJECTS = ("raw", "untrained", "backbone")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(show)
    app.command()(events)
    app.command()(evaluations)


def show(job: JobId, as_json: AsJson = False) -> None:
    """Show a job: state, progress, evaluations, checkpoints, and why it failed."""
    with connect() as client:
        found = client.jobs.get(job)
        if as_json:
            print_json(plain(found))
            return
        _show(client, found)


def events(
    job: JobId,
    type: Annotated[str | None, typer.Option(help="Only those of this type.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what happened to a job, oldest first."""
    with connect() as client:
        found = [e for e in client.jobs.events(job) if type is None or e.type == type]
    if as_json:
        print_json([plain(event) for event in found])
        return
    rows = [[event.seq, event.at, event.type, event.message or None] for event in found]
    print_table(["SEQ", "AT", "TYPE", "MESSAGE"], rows)


def evaluations(job: JobId, as_json: AsJson = False) -> None:
    """Show every figure of a job's newest evaluation beside those of the pixels and the untrained
    network; --json has all evaluations."""
    with connect() as client:
        found = client.jobs.evaluations(job)
    if as_json:
        print_json([plain(each) for each in found])
        return
    if not found:
        note("There are no evaluations yet.")
        return
    newest = {each.subject: each for each in found}
    columns = [newest[subject] for subject in _SUBJECTS if subject in newest]
    names = list(dict.fromkeys(name for each in columns for name in each.metrics))
    rows = [[name, *(figure(_number(each, name)) for each in columns)] for name in names]
    headings = [f"{each.subject}, step {each.step}".upper() for each in columns]
    print_table(["FIGURE", *headings], rows)


def _status(job: Job) -> str:
    """What is observed, and what is wished where that is yet to come."""
    wished = {"pause": ("pausing", "paused"), "cancel": ("cancelling", "cancelled")}
    coming = job.desired in wished and job.status not in wished[job.desired] and not job.done
    return f"{job.status} ({job.desired} requested)" if coming else str(job.status)


def facts(job: Job, origin: str | None = None) -> list[tuple[str, object]]:
    """What is known of a job, line by line; `None`: not yet, or no more.

    Args:
        origin: of a clone, what it goes on from.
    """
    spec = job.resolved or {}
    method, backbone = (spec.get(part, {}).get("name") for part in ("method", "backbone"))
    # Before its first step it may have told of other progress.
    progress = job.progress if job.progress and job.progress.step is not None else None
    runs = job.status in ("running", "pausing", "cancelling")
    return [
        ("id", job.id),
        ("name", job.name),
        ("status", _status(job)),
        ("data set", job.dataset and f"{job.dataset.name} ({job.dataset.id})"),
        ("method", method),
        ("backbone", backbone),
        ("resources", _resources(spec.get("resources", {}))),
        ("goes on from", origin),
        ("priority", job.priority or None),
        ("tags", ", ".join(f"{key}:{value}" for key, value in job.tags.items())),
        ("created", job.created_at),
        ("started", job.started_at),
        ("finished", job.finished_at),
        ("restarts", job.restarts or None),
        ("epoch", epochs(job)),
        ("step", progress and f"{progress.step}/{progress.total_steps or '-'}"),
        ("loss", progress and figure(progress.loss)),
        ("to go", duration(progress.eta_seconds) if progress and runs else None),
    ]


def _resources(asked: dict[str, Any]) -> str | None:
    if not asked:
        return None
    each = f"{asked['workers']} x {asked['cpus_per_worker']} CPUs"
    gpus = asked["gpus_per_worker"]
    return each + (f" and {gpus} GPU" if gpus else "")


def _origin(client: Client, job: Job) -> str | None:
    """What a clone goes on from."""
    if job.start_checkpoint_id is None:
        return None
    found = client.checkpoints.get(job.start_checkpoint_id)
    return f"step {found.step} of {found.job_id} ({found.id})"


def _show(client: Client, job: Job) -> None:
    # Only here: the spec's package takes longer to import than other commands to run.
    from dasl_core.spec.headlines import HEADLINES

    print_facts(facts(job, _origin(client, job)))
    if job.status == "queued":
        waiting = next((each for each in client.cluster().queue if each.id == job.id), None)
        if waiting is not None and waiting.reason:
            say(f"\n{waiting.reason}")
    attempts = client.jobs.attempts(job.id) if (job.attempt or 0) > 1 else []
    if attempts:
        say()
        tries = [
            [
                each.number,
                each.state,
                each.error and each.error.type,
                each.error and each.error.message,
            ]
            for each in attempts
        ]
        print_table(["ATTEMPT", "STATE", "ERROR", "MESSAGE"], tries)
    found = client.jobs.evaluations(job.id)
    names = [name for name in HEADLINES if any(_number(each, name) is not None for each in found)]
    if names:
        say()
        rows = [
            [e.subject, e.step, *(figure(_number(e, name), 3) for name in names)] for e in found
        ]
        print_table(["EVALUATED", "STEP", *names], rows)
        say(f"All figures: dasl evaluations {job.id}")
    newest = client.jobs.checkpoints(job.id)[-1:]
    for checkpoint in newest:
        say(f"\nNewest checkpoint: {checkpoint.id}. Fetch it with: dasl download {checkpoint.id}")
    if job.error is not None:
        say(f"\n{job.error.type}: {job.error.message}")
        for line in job.error.log_lines():
            say(f"  {clean(line)}")


def _number(evaluation: Evaluation, name: str) -> float | None:
    value = evaluation.metrics.get(name)
    return value if isinstance(value, int | float) else None


def epochs(job: Job) -> str | None:
    """`3/100`: how far a job is."""
    if job.progress is None or job.progress.epoch is None:
        return None
    return f"{job.progress.epoch:.4g}/{job.progress.epochs or '-'}"
