"""Commands that show the state of a job: `dasl show`, `events`, `evaluations` and `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dasl_core.headlines import HEADLINES, number_of
from dasl_core.vocabulary import Subject
from service.cli import console
from service.cli.formats import clean, duration, number, tags_text
from service.cli.inputs import JobId, connect, id_of_job
from service.cli.trouble import trouble
from service.cli.views import images_read, sparkline, times_line
from service.states import TERMINAL, Desired, JobStatus

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.models import Job

# Of the newest evaluation, beside its metrics.
_KNN_SETTINGS = {"knn_k": "k", "knn_temperature": "temperature", "knn_bank": "images in the bank"}

app = typer.Typer()


@app.command()
def show(job: JobId) -> None:
    """Show a job's status, progress, metrics and error."""
    with connect() as client:
        record = client.jobs.get(job)
        if console.as_json():
            console.print_json(record)
        else:
            _show(client, record)


@app.command()
def events(
    job: JobId,
    type: Annotated[str | None, typer.Option(help="Show only events of this type.")] = None,
) -> None:
    """List a job's events, oldest first."""
    with connect() as client:
        events = client.jobs.events(id_of_job(client, job))
        console.print_records(
            (event for event in events if type in (None, event.type)),
            {
                **console.columns("seq", "at", "type"),
                "MESSAGE": lambda event: event.message or None,
            },
        )


@app.command()
def evaluations(job: JobId) -> None:
    """Show all metrics of a job's newest evaluation.

    Those of raw pixels and of the network before training are beside it. With --json, print all evaluations.
    """
    with connect() as client:
        job = id_of_job(client, job)
        records = client.jobs.evaluations(job)
        has_ended = not records and client.jobs.get(job).status in TERMINAL
    if console.print_if_json(records):
        return
    if not records:
        why = "nothing was held out, or the job ended before the first one"
        console.note(f"There are no evaluations{f': {why}' if has_ended else ' yet'}.")
        return
    newest = {evaluation.subject: evaluation for evaluation in records}
    columns = [newest[subject] for subject in get_args(Subject) if subject in newest]
    names = list(dict.fromkeys(name for column in columns for name in column.metrics))
    names = [name for name in names if name not in _KNN_SETTINGS]
    rows = [
        [name, *(number(number_of(column.metrics, name)) for column in columns)] for name in names
    ]
    headers = [f"{column.subject}, step {column.step}".upper() for column in columns]
    console.print_table(["METRIC", *headers], rows)
    settings = [
        f"{label} {number(value)}"
        for name, label in _KNN_SETTINGS.items()
        if (value := number_of(columns[-1].metrics, name)) is not None
    ]
    if settings:
        console.note(f"k-NN: {', '.join(settings)}.")


@app.command()
def metrics(
    job: JobId,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Show only this metric, such as loss. Can be repeated. Default: all."),
    ] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="First step to show.")] = None,
    max_points: Annotated[
        int,
        typer.Option(
            min=2, max=1_000_000, help="Steps to show at most; minima and maxima are kept."
        ),
    ] = 10_000,
    as_csv: console.AsCsv = False,
) -> None:
    """Show the training metrics of a job. With --csv, print one line for each step."""
    with connect() as client:
        job = id_of_job(client, job)
        series = client.jobs.metrics(
            job, name=name or None, from_step=from_step, max_points=max_points
        )
    if console.print_if_json(series):
        return
    if as_csv:
        rows = zip(series.step, series.time, *series.values.values(), strict=True)
        console.print_csv(["step", "time", *series.values], rows)
        return
    curves = []
    for metric, values in series.values.items():
        if curve := [value for value in values if value is not None]:
            facts = map(number, (curve[-1], min(curve), max(curve)))
            curves.append([metric, *facts, sparkline(curve)])
    if not curves:
        console.note(
            "There are no metrics: none were reported yet, or they were removed by retention."
        )
        return
    console.print_table(["METRIC", "LAST", "SMALLEST", "LARGEST", "CURVE"], curves)


def _status(job: Job) -> str:
    """Return the status, with a pause or cancel request that has not taken effect yet."""
    effects: dict[str, tuple[JobStatus, JobStatus]] = {
        Desired.PAUSE: (JobStatus.PAUSING, JobStatus.PAUSED),
        Desired.CANCEL: (JobStatus.CANCELLING, JobStatus.CANCELLED),
    }
    pending = job.desired in effects and job.status not in effects[job.desired] and not job.done
    return f"{job.status} ({job.desired} requested)" if pending else str(job.status)


def facts(job: Job, origin: str | None = None) -> list[tuple[str, object]]:
    """Return names and values for `dasl show`; unknown values are None.

    Args:
        origin: for a clone, the checkpoint that it continues from.
    """
    spec = job.resolved or {}
    method, backbone = (spec.get(section, {}).get("name") for section in ("method", "backbone"))
    place = job.experiment
    # Progress without a step is only a heartbeat before the first step.
    progress = job.progress if job.progress and job.progress.step is not None else None
    active = job.status in (JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING)
    return [
        ("id", job.id),
        ("name", job.name),
        ("status", _status(job)),
        ("data set", f"{job.dataset.name} ({job.dataset.id}), version {job.dataset_version}"),
        ("method", method),
        ("backbone", backbone),
        ("resources", _resources(spec.get("resources", {}), job.spec.get("resources") or {})),
        ("continues from", origin),
        ("experiment", place and f"{place.id}, variant {place.variant}, seed {place.seed}"),
        ("submitted by", job.submitted_by),
        ("expires", job.expires_at),
        ("priority", job.priority or None),
        ("tags", tags_text(job.tags)),
        ("created", job.created_at),
        ("started", job.started_at),
        ("finished", job.finished_at),
        ("restarts", job.restarts or None),
        ("images read", images_read(job)),
        ("epoch", epochs(job)),
        ("step", progress and f"{progress.step}/{progress.total_steps or '-'}"),
        ("loss", progress and number(progress.loss)),
        ("time", progress and times_line(progress)),
        ("verdict", job.verdict and job.verdict.message),
        ("time left", duration(progress.eta_seconds) if progress and active else None),
    ]


def _resources(resources: dict[str, Any], submitted: dict[str, Any]) -> str | None:
    if not resources:
        return None
    workers, cpus = resources["workers"], resources["cpus_per_worker"]
    gpus = resources["gpus_per_worker"]
    if gpus == 0 and submitted.get("gpus_per_worker", "auto") == "auto":
        return f"{workers} x {cpus} CPUs (no GPU for it; the event no_gpus says what to do)"
    if gpus == "auto":
        gpus = "auto GPUs"
    elif gpus:
        gpus = f"{gpus} GPU"
    return f"{workers} x {cpus} CPUs" + (f" and {gpus}" if gpus else "")


def _origin(client: Client, job: Job) -> str | None:
    """Describe the checkpoint that a clone continues from."""
    if job.start_checkpoint_id is None:
        return None
    checkpoint = client.checkpoints.get(job.start_checkpoint_id)
    return f"step {checkpoint.step} of {checkpoint.job_id} ({checkpoint.id})"


def _show(client: Client, job: Job) -> None:
    console.print_facts(facts(job, _origin(client, job)))
    if not job.done and (reason := trouble(client)) is not None:
        console.print_line(f"\nWarning: {reason}")
    if job.status == JobStatus.QUEUED:
        for queued in client.cluster().queue:
            if queued.id == job.id and queued.reason:
                console.print_line(f"\n{queued.reason}")
    attempts = client.jobs.attempts(job.id) if (job.attempt or 0) > 1 else []
    if attempts:
        console.print_line()
        rows = [
            [a.number, a.state, a.error and a.error.type, a.error and a.error.message]
            for a in attempts
        ]
        console.print_table(["ATTEMPT", "STATE", "ERROR", "MESSAGE"], rows)
    records = client.jobs.evaluations(job.id)
    names = [
        name for name in HEADLINES if any(number_of(e.metrics, name) is not None for e in records)
    ]
    if names:
        console.print_line()
        metrics = [
            [e.subject, e.step, *(number(number_of(e.metrics, name), 3) for name in names)]
            for e in records
        ]
        console.print_table(["EVALUATED", "STEP", *names], metrics)
        console.print_line(f"All metrics: dasl evaluations {job.id}")
    for checkpoint in client.jobs.checkpoints(job.id)[-1:]:
        console.print_line(
            f"\nNewest checkpoint: {checkpoint.id}. Download it with: dasl download {checkpoint.id}"
        )
    if job.error is not None:
        console.print_line(f"\n{job.error.type}: {job.error.message}")
        if job.error.is_explained:  # the traceback is no help
            console.print_line(f"Its log: dasl logs {job.id}")
            return
        for line in job.error.log_lines():
            console.print_line(f"  {clean(line)}")


def epochs(job: Job) -> str | None:
    """Return the epochs done and in total: `3/100`."""
    if job.progress is None or job.progress.epoch is None:
        return None
    return f"{job.progress.epoch:.4g}/{job.progress.epochs or '-'}"
