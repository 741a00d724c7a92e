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

if TYPE_CHECKING:
    from service.client import Client
    from service.wire.datasets import DatasetView

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
    from service.wire.checkpoints import Verification

    settings: dict[str, Any] = {"windows": windows, "evaluate": evaluate, "seed": seed}
    if Path(run).is_dir():
        options = DataOptions(data, split, evaluate_data, evaluate_split)
        raise typer.Exit(check(Path(run), options, **settings).code)
    with connect() as client, tempfile.TemporaryDirectory() as name:
        dataset = _download(client, id_or_name(run), Path(name))
        if data is None:
            data, split = dataset.uri, split or (dataset.source or {}).get("split")
        options = DataOptions(data, split, evaluate_data, evaluate_split)
        result = check(Path(name), options, **settings)
        if result.checkpoint is not None and result.code != NOT_VERIFIABLE:
            said = Verification(
                certificate=result.certificate, passed=result.code == 0, summary=result.summary
            )
            client.checkpoints.report_verification(result.checkpoint.name, said)
    raise typer.Exit(result.code)


def _download(client: Client, job: str, folder: Path) -> DatasetView:
    """Download the checkpoints of a job, each to a folder of its id; return its data set."""
    record = client.jobs.get(id_of_job(client, job))
    checkpoints = client.jobs.checkpoints(record.id)
    if not checkpoints:
        raise console.fail(f"Job {record.id} has no checkpoint to verify.")
    with progress_bars() as on_bytes:
        for checkpoint in checkpoints:
            client.checkpoints.download(checkpoint.id, folder / checkpoint.id, on_bytes=on_bytes)
    return client.datasets.get(record.dataset.id)
