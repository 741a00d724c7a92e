"""`dasl verify`: check the certificate of a run on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from service.client.errors import DaslError

if TYPE_CHECKING:
    from service.client import Client
    from service.wire.checkpoints import Verification

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
        from dasl_core.standalone.verify import NOT_VERIFIABLE
        from dasl_core.standalone.verify import verify as check
    from dasl_core.spec.source import SourceOptions
    from service.wire.checkpoints import Verification

    settings: dict[str, Any] = {"windows": windows, "evaluate": evaluate, "seed": seed}
    if Path(run).is_dir():
        options = DataOptions(data, split, evaluate_data, evaluate_split)
        raise typer.Exit(check(Path(run), options, **settings).code)
    with connect() as client, tempfile.TemporaryDirectory() as name:
        job, source = client.jobs.get(id_of_job(client, id_or_name(run))), SourceOptions()
        if data is None:
            dataset = client.datasets.get(job.dataset.id)
            if dataset.version != job.dataset_version:
                console.note(
                    f"Error: the job has version {job.dataset_version} of {dataset.name}, which is now at version "
                    f"{dataset.version}. Pass the images of the job with --data."
                )
                raise typer.Exit(NOT_VERIFIABLE)
            data, source = dataset.uri, SourceOptions.model_validate(dataset.source or {})
        _download(client, job.id, Path(name))
        options = DataOptions(data, split or source.split, evaluate_data, evaluate_split, source)
        result = check(Path(name), options, **settings)
        if result.checkpoint is not None and result.code != NOT_VERIFIABLE:
            said = Verification(
                certificate=result.certificate, passed=result.code == 0, summary=result.summary
            )
            report(client, result.checkpoint.name, said)
    raise typer.Exit(result.code)


def report(client: Client, checkpoint: str, said: Verification) -> None:
    """Record a result on the server; a token that may only read, or a server that is gone, does not change it."""
    try:
        client.checkpoints.report_verification(checkpoint, said)
    except DaslError as error:
        console.note(f"Warning: the result is not recorded: {error}")


def _download(client: Client, job: str, folder: Path) -> None:
    """Download the checkpoints of a job, each to a folder of its id."""
    checkpoints = client.jobs.checkpoints(job)
    if not checkpoints:
        raise console.fail(f"Job {job} has no checkpoint to verify.")
    with progress_bars() as on_bytes:
        for checkpoint in checkpoints:
            client.checkpoints.download(checkpoint.id, folder / checkpoint.id, on_bytes=on_bytes)
