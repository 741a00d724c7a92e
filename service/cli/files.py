"""Commands for a job's checkpoints and other files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasl_core.headlines import is_ranked, rank_of_checkpoint
from service.cli.inputs import DownloadFolder, JobId, connect, id_of_job, id_or_name
from service.cli.output import (
    AsJson,
    fail,
    note,
    number,
    plain,
    print_json,
    print_line,
    print_records,
    print_result,
    print_table,
    size,
)

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.files import OnBytes
    from service.wire.checkpoints import CheckpointView

app = typer.Typer()


@app.command()
def checkpoints(job: JobId, as_json: AsJson = False) -> None:
    """List a job's checkpoints, oldest first."""
    with connect() as client:
        job = id_of_job(client, job)
        records = client.jobs.checkpoints(job)
    print_records(
        records,
        {
            "ID": lambda checkpoint: checkpoint.id,
            "STEP": lambda checkpoint: checkpoint.step,
            "EPOCH": lambda checkpoint: number(checkpoint.epoch),
            "SIZE": lambda checkpoint: size(checkpoint.size),
            "": _marks,
            "CREATED": lambda checkpoint: checkpoint.created_at,
        },
        as_json,
    )


@app.command()
def download(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB",
            callback=id_or_name,
            help="Id of a checkpoint; or a job, as elsewhere, for its final or newest checkpoint.",
        ),
    ],
    output: DownloadFolder = None,
    best: Annotated[
        bool, typer.Option("--best", help="Of a job, its best checkpoint by checkpoints.best_by.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download a checkpoint. Repeat the command to resume an interrupted download."""
    with connect() as client:
        chosen = checkpoint_id(client, checkpoint, best)
        directory = output or Path(chosen)
        with progress_bars() as on_bytes:
            paths = client.checkpoints.download(chosen, directory, on_bytes=on_bytes)
    if as_json:
        files = [str(path) for path in paths]
        print_json({"checkpoint": chosen, "directory": str(directory), "files": files})
        return
    print_table(["FILE", "SIZE"], [[path, size(path.stat().st_size)] for path in paths])


CheckpointId = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", callback=id_or_name, help="Id of the checkpoint."),
]


@app.command()
def pin(
    checkpoint: CheckpointId,
    off: Annotated[bool, typer.Option("--off", help="Remove the pin.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pin a checkpoint. It is kept even if the job's settings would delete it."""
    with connect() as client:
        record = client.checkpoints.pin(checkpoint, not off)
    state = "pinned" if record.pinned else "no longer pinned"
    print_result(record, f"Checkpoint {record.id} is {state}.", as_json)


def _marks(checkpoint: CheckpointView) -> str:
    marks = {"final": checkpoint.final, "pinned": checkpoint.pinned}
    return ", ".join(mark for mark, applies in marks.items() if applies)


@app.command()
def artifacts(
    job: JobId,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", file_okay=False, help="Download all files to DIR."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a job's plots and other files. Downloads them with -o."""
    with connect() as client:
        record = client.jobs.get(job)
        job, removed_at = record.id, record.artifacts_removed_at
        records = client.jobs.artifacts(job)
        if output is not None:
            with progress_bars() as on_bytes:
                for artifact in records:
                    client.jobs.download_artifact(job, artifact, output, on_bytes=on_bytes)
    if as_json:
        directory = None if output is None else str(output)
        print_json([{**plain(artifact), "directory": directory} for artifact in records])
        return
    rows = [[artifact.name, size(artifact.size), artifact.content_type] for artifact in records]
    print_table(["NAME", "SIZE", "TYPE"], rows)
    if removed_at is not None:
        note(f"Retention removed this job's files on {removed_at:%Y-%m-%d %H:%M} UTC.")
    if output is not None:
        print_line(
            f"Downloaded {len(records)} {'file' if len(records) == 1 else 'files'} to {output}."
        )


def checkpoint_id(client: Client, value: str, best: bool) -> str:
    """Return the id of a checkpoint; for a job that of its best, or of its final or else newest one."""
    if value.startswith("ckpt_"):
        if best:
            raise typer.BadParameter("--best: expected a job, not a checkpoint")
        return value
    value = id_of_job(client, value)
    checkpoints = client.jobs.checkpoints(value)
    if not checkpoints:
        raise fail(f"Job {value} has no checkpoint yet. Show its state: dasl show {value}")
    if best:
        by = ((client.jobs.get(value).resolved or {}).get("checkpoints") or {}).get("best_by")
        ranked = [each for each in checkpoints if is_ranked(each.metrics or {}, by)]
        if not ranked:
            metric = by or "knn_top1 or recall_at_1"
            raise fail(
                f"No checkpoint of job {value} has {metric}. List them: dasl checkpoints {value}"
            )
        # Of one step, the newest, as for clones: it may have the final evaluation, and the export.
        newest_first = reversed(ranked)
        return max(newest_first, key=lambda x: rank_of_checkpoint(x.metrics or {}, x.step, by)).id
    return max(checkpoints, key=lambda each: (each.final, each.step, each.id)).id


@contextmanager
def progress_bars() -> Iterator[OnBytes]:
    """Show a bar for each file on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {}

        def on_bytes(name: str, received: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=received)

        yield on_bytes
