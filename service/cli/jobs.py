"""Commands that submit, list and control jobs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasl_core.headlines import ACCURACIES
from service.cli import console
from service.cli.estimates import described, facts_of
from service.cli.formats import number, tags_text
from service.cli.inputs import (
    JobId,
    Overrides,
    SpecFile,
    connect,
    given,
    id_of_experiment,
    id_of_job,
    invalid_spec,
    read_spec,
    tags,
    with_overrides,
)
from service.cli.show import epochs
from service.states import JobStatus

if TYPE_CHECKING:
    from service.client.sync.models import Job

app = typer.Typer()


@app.command()
def submit(
    spec: SpecFile,
    overrides: Overrides,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it ends.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key returns the same job.")
    ] = None,
) -> None:
    """Submit a job."""
    body = read_spec(spec, overrides)
    with connect() as client:
        # A request of its own, because a submission holds locks while the server would seek it; and none for one that may
        # be stored already, whose data set may be gone.
        if idempotency_key is None:
            console.note_advice(client.jobs.validate(body).advice)
        job = client.jobs.submit(body, idempotency_key=idempotency_key)
    console.note_warnings(job.warnings)
    submitted = f"Submitted {job.name} as {job.id}."
    if job.estimate is not None and not console.as_json():
        console.note(described(job.estimate))
    if not watch:
        console.print_result(job, f"{submitted} Watch it with: dasl watch {job.id}")
        return
    console.hint(submitted)
    _watch(job.id)


@app.command()
def validate(
    spec: SpecFile,
    overrides: Overrides,
    local: Annotated[
        bool, typer.Option("--local", help="Check what needs neither a server nor the data set.")
    ] = False,
) -> None:
    """Resolve a spec and estimate its steps, time, memory and disk. Nothing is submitted."""
    body = read_spec(spec, overrides)
    if local:
        _validate_locally(spec, body)
        return
    with connect() as client:
        answer = client.jobs.validate(body)
    console.note_warnings(answer.warnings)
    console.note_advice(answer.advice)
    if console.print_if_json(answer):
        return
    from dasl_core.spec import dump_yaml

    console.print_line(dump_yaml(answer.resolved))
    console.print_line()
    console.print_facts(facts_of(answer.estimate))


def _validate_locally(path: Path, body: dict[str, Any]) -> None:
    from dasl_core.spec import JobSpec
    from service.cli.local_checks import check_locally

    checks = check_locally(JobSpec.model_validate(body))
    if checks.problems:
        raise invalid_spec(path, checks.problems)
    answer = {"valid": True, "not_checked": checks.not_checked}
    unchecked = "; ".join(checks.not_checked)
    console.print_result(answer, f"{path} is a valid spec. Not checked: {unchecked}.")


@app.command("jobs")
def list_jobs(
    status: Annotated[
        JobStatus | None, typer.Option(help="Show only jobs with this status.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Show only jobs with this method.")] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="KEY:VALUE", help="Show only jobs with this tag.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Show only jobs of this experiment.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=10**6, help="Maximum number of jobs.")
    ] = 20,
    as_csv: console.AsCsv = False,
) -> None:
    """List jobs, newest first."""
    with connect() as client:
        pages = client.jobs.list(
            status=status,
            method=method,
            tag=tag,
            experiment=experiment and id_of_experiment(client, experiment),
            page_size=min(limit, 100),
        )
        jobs = list(islice(pages, limit))
    shown: dict[str, Callable[[Job], object]] = {
        **console.columns("id", "name", "status", "priority"),
        "DATA SET": lambda job: job.dataset.name,
        "METHOD": lambda job: ((job.resolved or {}).get("method") or {}).get("name"),
        "EPOCH": epochs,
        "LOSS": lambda job: number(job.progress.loss if job.progress else None),
    }
    for accuracy in ACCURACIES:
        if any(_accuracy(job, accuracy.field) for job in jobs):
            shown[accuracy.label] = partial(_accuracy, field=accuracy.field)
    if len({job.submitted_by for job in jobs}) > 1:
        shown["BY"] = lambda job: job.submitted_by
    shown |= {
        "TAGS": lambda job: tags_text(job.tags) or None,
        "CREATED": lambda job: job.created_at,
    }
    console.print_records(jobs, shown, as_csv)


def _accuracy(job: Job, field: str) -> str | None:
    value = getattr(job.progress, field, None)
    return None if value is None else f"{100 * value:.1f}%"


@app.command()
def watch(job: JobId) -> None:
    """Follow a job until it ends. Exit code 0 if it succeeded. Ctrl-C does not stop the job."""
    _watch(job)


@app.command()
def logs(
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the job ends.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Print only the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt. Default: the newest one.")
    ] = None,
) -> None:
    """Print the log of a job. It is that of the newest attempt, or of --attempt."""
    if follow and attempt is not None:
        raise typer.BadParameter("--follow covers all attempts; remove --attempt")
    with connect() as client:
        job = id_of_job(client, job)
        if follow:
            for line in client.jobs.follow_logs(job, tail=tail):
                if console.as_json():
                    console.print_json_line({"line": line})
                else:
                    console.print_line(line)
            return
        text = client.jobs.logs(job, tail=tail, attempt=attempt)
        ended = not text and client.jobs.get(job).done
    if console.as_json():
        console.print_json({"job": job, "lines": text.splitlines()})
    elif text:
        console.print_line(text.rstrip("\n"))
    elif ended:
        console.note(
            "No log lines are stored: none were printed, or they were removed after their retention."
        )
    else:
        console.note("There are no log lines yet.")


@app.command()
def cancel(job: JobId) -> None:
    """Cancel a job. A running job stops after its current step and saves a checkpoint."""
    with connect() as client:
        record = client.jobs.cancel(id_of_job(client, job))
    cancelled = record.status == JobStatus.CANCELLED
    text = "is cancelled" if cancelled else "stops after its current step"
    console.print_result(record, f"Job {record.id} {text}.")


@app.command()
def pause(job: JobId) -> None:
    """Pause a job. A running job stops after its current step, saves a checkpoint and frees its CPUs and GPUs."""
    with connect() as client:
        record = client.jobs.pause(id_of_job(client, job))
    paused = record.status == JobStatus.PAUSED
    text = "is paused" if paused else "pauses after its current step"
    console.print_result(record, f"Job {record.id} {text}.")
    console.hint(f"Resume it{'' if paused else ' once it is paused'}: dasl resume {record.id}")


@app.command()
def resume(job: JobId) -> None:
    """Resume a paused job. It is queued again and continues from its last checkpoint."""
    with connect() as client:
        record = client.jobs.resume(id_of_job(client, job))
    console.print_result(record, f"Job {record.id} is {record.status} again.")


@app.command()
def clone(
    job: JobId,
    overrides: Overrides,
    checkpoint: Annotated[
        str,
        typer.Option(
            help='Id of the checkpoint to start from; "newest"; "best" by checkpoints.best_by; or "none" to start '
            "from scratch."
        ),
    ] = "newest",
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the new job until it ends.")
    ] = False,
) -> None:
    """Submit a job that continues from another job's checkpoint. Settings may be changed."""
    changes = with_overrides({}, overrides)
    start = None if checkpoint == "none" else checkpoint
    with connect() as client:
        record = client.jobs.clone(id_of_job(client, job), changes, checkpoint=start)
    console.note_warnings(record.warnings)
    if watch:
        _watch(record.id)
        return
    start = record.start_checkpoint_id
    origin = f"continues from {start}" if start else "starts from scratch"
    text = f"Submitted {record.name} as {record.id}, which {origin}."
    console.print_result(record, f"{text} Watch it with: dasl watch {record.id}")


@app.command()
def update(
    job: JobId,
    priority: Annotated[
        int | None, typer.Option(help="Queued jobs with a higher priority start first.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    max_hours: Annotated[
        float | None,
        typer.Option(help="New time limit of all attempts together, until the job has ended."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="New number of ranks, of a job that is paused or queued.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY:VALUE", help="Set a tag and keep the others. Can be repeated."),
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Remove a tag. Can be repeated.")
    ] = None,
) -> None:
    """Change a job's priority, name, tags, time limit or workers.

    If two people change tags at the same time, the later change wins.
    """
    changes = given(name=name, priority=priority, max_hours=max_hours, workers=workers)
    if not changes and not tag and not untag:
        raise typer.BadParameter(
            "expected --priority, --name, --max-hours, --workers, --tag or --untag"
        )
    added = tags(tag) or {}
    with connect() as client:
        job = id_of_job(client, job)
        if tag or untag:
            kept = client.jobs.get(job).tags.items()
            changes["tags"] = {k: v for k, v in kept if k not in (untag or [])} | added
        record = client.jobs.update(job, **changes)
    text = f"Job {record.id}: name {record.name}, priority {record.priority}"
    text += f", tags {tags_text(record.tags) or 'none'}"
    text += "" if record.max_hours is None else f", at most {record.max_hours:g} hours"
    text += "" if record.workers is None else f", {record.workers} workers"
    console.print_result(record, f"{text}.")


def _watch(job: str) -> None:
    from service.cli.views import choose_view
    from service.cli.watching import print_failure, watch_job

    # No retries in the client: the watch loop has its own, and reports them.
    with connect(patience=0.0) as client:
        job_id = id_of_job(client, job)
        try:
            with choose_view() as view:
                record = watch_job(client, job_id, view)
        except KeyboardInterrupt as interrupt:
            console.note(
                f"\nJob {job_id} was not stopped. Watch it again: dasl watch {job_id}   "
                f"Cancel it: dasl cancel {job_id}"
            )
            raise typer.Exit(130) from interrupt
        if record.status != JobStatus.SUCCEEDED:
            print_failure(client, record)
            raise typer.Exit(1)
