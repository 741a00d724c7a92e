"""The commands `dasl datasets ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli import dataset_versions, preparations, preview
from service.cli.dataset_views import DatasetId, ProgressNotes, print_dataset
from service.cli.inputs import (
    Yes,
    confirm_deletion,
    connect,
    dataset_name,
    folder,
    optional_utf8,
)
from service.cli.output import AsJson, fail, note, print_records, print_result
from service.cli.uploads import check_uploadable, upload_images

app = typer.Typer(name="datasets", no_args_is_help=True, help="Manage data sets.")
for commands in (preview.dataset_commands, dataset_versions.app, preparations.app):
    app.add_typer(commands)


@app.command()
def add(
    path: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION",
            callback=folder,
            help="Folder of images, archive, list or table, as the server sees it, or s3://BUCKET/FOLDER. Subfolders "
            "are classes.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the data set. Default: the last part of LOCATION, of a file with its ending."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Use one split only, such as train.", callback=optional_utf8)
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="File with the names of the classes to use, one a line. Default: all.",
        ),
    ] = None,
    labels: Annotated[
        bool, typer.Option(help="Use the labels of the source, or of folders.")
    ] = True,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Read links that lead out of the folder.")
    ] = False,
    image_column: Annotated[
        str | None, typer.Option(help="Column of the images of a table.", callback=optional_utf8)
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of the labels of a table.", callback=optional_utf8)
    ] = None,
    upload: Annotated[
        bool,
        typer.Option(
            "--upload",
            help="Send the images of this machine to the server: one archive or table, or a folder. Repeat the command "
            "to resume.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until all images are read.")] = True,
    as_json: AsJson = False,
) -> None:
    """Register images. Reads the header of every image, decodes a sample, and reports the result."""
    from service.client.errors import DatasetFailed

    chosen = dataset_name(name, path)
    if upload:
        check_uploadable(path, follow_links)
    given = {
        "split": split,
        "classes": None if classes is None else _lines(classes),
        "labels": None if labels else "none",
        "links": "follow" if follow_links else None,
        "image_column": image_column,
        "label_column": label_column,
    }
    source = {option: value for option, value in given.items() if value is not None}
    with connect() as client:
        if upload:
            dataset = upload_images(client, path, chosen, source)
        else:
            dataset = client.datasets.add(path, chosen, source)
        if wait:
            if not as_json:
                note(f"Reading the images of {dataset.name} ({dataset.id}) ...")
            try:
                dataset = client.datasets.wait(
                    dataset.id, on_poll=(lambda _: None) if as_json else ProgressNotes()
                )
            except DatasetFailed as failed:
                dataset = failed.dataset
    print_dataset(dataset, as_json, with_error=False)
    if dataset.state == "failed":
        note(
            f"The name stays taken until you remove the data set: dasl datasets rm {dataset.id}. Once its files are "
            f"corrected, read it again: dasl datasets refresh {dataset.id}"
        )
        raise fail(f"Data set {dataset.name} failed: {dataset.error_message}")


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List data sets, newest first."""
    with connect() as client:
        datasets = list(client.datasets.list())
    print_records(
        datasets,
        {
            "ID": lambda dataset: dataset.id,
            "NAME": lambda dataset: dataset.name,
            "STATE": lambda dataset: dataset.state,
            "VERSION": lambda dataset: dataset.version if dataset.facts else None,
            "IMAGES": lambda dataset: (dataset.facts or {}).get("num_images"),
            "CLASSES": lambda dataset: (dataset.facts or {}).get("num_classes"),
            "WHERE": lambda dataset: dataset.uri,
        },
        as_json,
    )


@app.command()
def show(dataset: DatasetId, as_json: AsJson = False) -> None:
    """Show a data set. Its ingest report has image counts and skipped files."""
    with connect() as client:
        record = client.datasets.get(dataset)
        prepared = [] if as_json else list(client.preparations.list(record.id))
    print_dataset(record, as_json, [preparations.describe(each) for each in prepared])


@app.command()
def rm(dataset: DatasetId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a data set from the service. The images are not touched, unless they were uploaded: then it asks."""
    with connect() as client:
        record = client.datasets.get(dataset)
        if record.upload is not None and not yes:
            confirm_deletion(
                f"data set {record.name} ({record.id}) with its uploaded images, of which the server has no other copy"
            )
        client.datasets.delete(record.id)
    images = "The images are not touched" if record.upload is None else "The upload is removed"
    print_result(
        {"deleted": record.id},
        f"Removed data set {record.name} ({record.id}). {images}.",
        as_json,
    )


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{file} cannot be read: {error}", param_hint="--classes"
        ) from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise typer.BadParameter(f"{file} names no class", param_hint="--classes")
    return names
