"""Commands for a job's checkpoints and other files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasl_core.headlines import is_ranked, rank_of_checkpoint
from dasl_core.outputs import own_folder
from service.cli import console
from service.cli.formats import number, plain, size
from service.cli.inputs import (
    Best,
    DownloadFolder,
    Force,
    JobId,
    connect,
    id_argument,
    id_of_job,
    output_folder,
)
from service.cli.progress import progress_bars

if TYPE_CHECKING:
    from service.client import Client
    from service.wire.checkpoints import CheckpointView

app = typer.Typer()


@app.command()
def checkpoints(job: JobId) -> None:
    """List a job's checkpoints, oldest first."""
    shown: console.Columns[CheckpointView] = {
        **console.columns("id", "step"),
        "EPOCH": lambda checkpoint: number(checkpoint.epoch),
        "SIZE": lambda checkpoint: size(checkpoint.size),
        "": _marks,
        **console.columns("created_at"),
    }
    with connect() as client:
        job = id_of_job(client, job)
        console.print_records(client.jobs.checkpoints(job), shown)


@app.command()
def download(
    checkpoint: Annotated[
        str,
        id_argument(
            "CHECKPOINT|JOB",
            "Id of a checkpoint; or a job, as elsewhere, for its final or newest checkpoint.",
        ),
    ],
    output: DownloadFolder = None,
    best: Best = False,
    force: Force = False,
) -> None:
    """Download a checkpoint. Repeat the command to resume an interrupted download."""
    with connect() as client:
        checkpoint = checkpoint_id(client, checkpoint, best)
        directory = output or Path(checkpoint)
        record = client.checkpoints.get(checkpoint)
        with progress_bars() as on_bytes:
            paths = client.checkpoints.download(
                checkpoint, directory, on_bytes=on_bytes, force=force
            )
    if console.as_json():
        files = [str(path) for path in paths]
        console.print_json({"checkpoint": checkpoint, "directory": str(directory), "files": files})
        return
    console.print_table(["FILE", "SIZE"], [[path, size(path.stat().st_size)] for path in paths])
    which = "the final one" if record.final else "not the final one"
    console.note(f"Checkpoint {checkpoint} of step {record.step}, {which} of job {record.job_id}.")


@app.command()
def pin(
    checkpoint: Annotated[str, id_argument("CHECKPOINT", "Id of the checkpoint.")],
    off: Annotated[bool, typer.Option("--off", help="Remove the pin.")] = False,
) -> None:
    """Pin a checkpoint. It is kept even if the job's settings would delete it."""
    with connect() as client:
        record = client.checkpoints.pin(checkpoint, not off)
    state = "pinned" if record.pinned else "no longer pinned"
    console.print_result(record, f"Checkpoint {record.id} is {state}.")


@app.command()
def undelete(
    subject: Annotated[str, id_argument("JOB|CHECKPOINT", "Id of the job or checkpoint.")],
) -> None:
    """Take back what retention by age is about to remove.

    Nothing of a job is then removed for its age until that long after now; a checkpoint is pinned.
    """
    with connect() as client:
        if subject.startswith("ckpt_"):
            return pin(subject)
        job = client.jobs.undelete(id_of_job(client, subject))
    console.print_result(job, f"Everything of job {job.id} that is still there stays.")


def _marks(checkpoint: CheckpointView) -> str:
    checked = checkpoint.verification
    marks = {"final": checkpoint.final, "pinned": checkpoint.pinned}
    if checked is not None:
        marks["verified" if checked.passed else "not as certified"] = True
    return ", ".join(mark for mark, applies in marks.items() if applies)


@app.command()
def artifacts(
    job: JobId,
    output: Annotated[Path | None, output_folder("Download all files to DIR.")] = None,
    force: Force = False,
) -> None:
    """List a job's plots and other files. Downloads them with -o."""
    with connect() as client:
        record = client.jobs.get(job)
        job, removed_at = record.id, record.artifacts_removed_at
        records = client.jobs.artifacts(job)
        if output is not None:
            with (
                own_folder(output, ".dasl-artifacts", force=force) as force,
                progress_bars() as on_bytes,
            ):
                client.jobs.download_artifacts(job, records, output, on_bytes=on_bytes, force=force)
    if console.as_json():
        directory = None if output is None else str(output)
        console.print_json([{**plain(artifact), "directory": directory} for artifact in records])
        return
    rows = [[artifact.name, size(artifact.size), artifact.content_type] for artifact in records]
    console.print_table(["NAME", "SIZE", "TYPE"], rows)
    if removed_at is not None:
        console.note(f"Retention removed this job's files on {removed_at:%Y-%m-%d %H:%M} UTC.")
    if output is not None:
        files = "1 file" if len(records) == 1 else f"{len(records)} files"
        console.print_line(f"Downloaded {files} to {output}.")


def checkpoint_id(client: Client, value: str, best: bool) -> str:
    """Return the id of a checkpoint; for a job that of its best, or of its final or else newest one."""
    if value.startswith("ckpt_"):
        if best:
            raise typer.BadParameter("--best: expected a job, not a checkpoint")
        return value
    job = id_of_job(client, value)
    checkpoints = client.jobs.checkpoints(job)
    if not checkpoints:
        raise console.fail(f"Job {job} has no checkpoint yet. Show its state: dasl show {job}")
    if not best:
        return max(checkpoints, key=lambda x: (x.final, x.step, x.id)).id
    by = ((client.jobs.get(job).resolved or {}).get("checkpoints") or {}).get("best_by")
    # Of one step, the newest, as for clones: it may have the final evaluation, and the export.
    newest_first = [x for x in reversed(checkpoints) if is_ranked(x.metrics or {}, by)]
    if not newest_first:
        metric = by or "knn_top1 or recall_at_1"
        raise console.fail(
            f"No checkpoint of job {job} has {metric}. List them: dasl checkpoints {job}"
        )
    return max(newest_first, key=lambda x: rank_of_checkpoint(x.metrics or {}, x.step, by)).id
