"""The commands `dasl datasets prepare` and `dasl datasets preparations`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import console
from service.cli.dataset_views import DatasetId, progress_of
from service.cli.inputs import Overrides, connect, file_option, given, read_spec
from service.cli.progress import progress_notes

if TYPE_CHECKING:
    from service.client.models import Preparation

app = typer.Typer()


@app.command()
def prepare(
    dataset: DatasetId,
    overrides: Overrides,
    spec: Annotated[
        Path | None,
        file_option(
            "SPEC.yaml", "YAML or JSON file with the spec of the jobs. Its `dataset` is ignored."
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="As backbone.image_size of the jobs. Default: auto.")
    ] = None,
    image_cache: Annotated[
        str | None,
        typer.Option(metavar="auto|exact|jpeg", help="As train.image_cache of the jobs."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until all images are decoded.")] = True,
) -> None:
    """Decode the images of a registered data set before jobs need them, for jobs of one image size.

    It runs on the head node of Ray. `dasl train --prepare` does the same without a service, and `dasl prepare` lays out
    published data sets. What was requested before is waited for, and what is in the cache is not decoded again. Jobs that start meanwhile
    wait for the images, too.
    """
    from service.client.errors import PreparationFailed

    fields = {
        "dataset": json.dumps(dataset),
        "backbone.image_size": image_size,
        "train.image_cache": image_cache,
    }
    changes = [f"{field}={value}" for field, value in given(**fields).items()]
    settings = read_spec(spec, [*overrides, *changes])
    with connect() as client:
        record = client.datasets.get(dataset)
        preparation = client.preparations.request(record.id, settings)
        if wait and not preparation.done:
            console.hint(f"Decoding the images of {record.name} ({preparation.id}) ...")
            on_poll = progress_notes(progress_of)
            try:
                preparation = client.preparations.wait(preparation.id, on_poll=on_poll)
            except PreparationFailed as failed:
                preparation = failed.task
    console.print_result(preparation, f"{preparation.id}: {describe(preparation)}")
    if preparation.state == "failed":
        raise console.fail(f"The images of {record.name} are not prepared")


@app.command("preparations")
def list_preparations(dataset: DatasetId) -> None:
    """List the preparations of a data set, newest first."""
    shown: console.Columns[Preparation] = {
        **console.columns("id", VERSION="dataset_version", SIZE="image_size", BANDS="channels"),
        **console.columns(CACHE="image_cache"),
        "STATE": _outcome,
    }
    with connect() as client:
        console.print_records(client.preparations.list(client.datasets.get(dataset).id), shown)


def describe(preparation: Preparation) -> str:
    """Return what is prepared, and how far it is, in one line."""
    bands = "band" if preparation.channels == 1 else "bands"
    what = f"version {preparation.dataset_version}, {preparation.image_size} pixels, {preparation.channels} {bands}, "
    return f"{what}{preparation.image_cache}: {_outcome(preparation)}"


def _outcome(preparation: Preparation) -> str:
    if preparation.error is not None:
        return f"{preparation.state}: {preparation.error.message}"
    result = preparation.result
    if result is None:
        progress = progress_of(preparation) if preparation.state == "running" else None
        return preparation.state if progress is None else f"{preparation.state}: {progress}"
    where = "on all nodes" if result.get("shared") else "on the head node of Ray"
    counts = f"{result.get('cached', 0):,} of {result.get('images', 0):,} images {where}"
    return f"{preparation.state}: {counts} ({result.get('form')})"
