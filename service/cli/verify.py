"""`dasl verify`: check the certificate of a run on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli import console
from service.cli.inputs import (
    LocalImages,
    LocalImagesToEvaluateOn,
    Split,
    connect,
    id_of_job,
    id_or_name,
)
from service.cli.progress import progress_bars

app = typer.Typer()


@app.command()
def verify(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR|JOB",
            help="Output folder of `dasl train`, or a folder with downloaded checkpoints; or a job, whose checkpoints are "
            "downloaded.",
        ),
    ],
    data: LocalImages = None,
    split: Split = None,
    evaluate_data: LocalImagesToEvaluateOn = None,
    evaluate_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of these images, only one split.")
    ] = None,
    windows: Annotated[
        int,
        typer.Option(
            min=0, max=1000, help="Parts of the run to train again, from a kept checkpoint each."
        ),
    ] = 3,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Also compute the reported figures again.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Chooses the parts. [default: at random]")
    ] = None,
) -> None:
    """Check a run by its certificate: train parts of it again, and compare bit for bit."""
    with console.core_extra("train"):
        from dasl_core.standalone.inputs import DataOptions
        from dasl_core.standalone.verify import verify as check
    with tempfile.TemporaryDirectory() as downloads:
        folder = Path(run)
        if not folder.is_dir():
            folder = Path(downloads)
            data = _download(id_or_name(run), folder, data)
        options = DataOptions(data, split, evaluate_data, evaluate_split)
        code = check(folder, options, windows=windows, evaluate=evaluate, seed=seed)
    raise typer.Exit(code)


def _download(job: str, folder: Path, data: str | None) -> str | None:
    """Download the checkpoints of a job; return where its images are, unless that is given."""
    with connect() as client, progress_bars() as on_bytes:
        record = client.jobs.get(id_of_job(client, job))
        checkpoints = client.jobs.checkpoints(record.id)
        if not checkpoints:
            raise console.fail(f"Job {record.id} has no checkpoint to verify.")
        for checkpoint in checkpoints:
            client.checkpoints.download(checkpoint.id, folder / checkpoint.id, on_bytes=on_bytes)
        return data or client.datasets.get(record.dataset.id).uri
