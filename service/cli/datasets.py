"""The commands `dasl datasets ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import dataset_versions, preparations, preview
from service.cli.dataset_views import DatasetId, print_dataset, wait_for_images
from service.cli.inputs import (
    Yes,
    confirm_deletion,
    connect,
    dataset_name,
    file_option,
    folder,
    given,
    text_option,
)
from service.cli.output import Columns, as_json, fail, note, print_records, print_result
from service.cli.uploads import check_uploadable, upload_images

if TYPE_CHECKING:
    from service.client.sync.models import Dataset

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
    split: Annotated[str | None, text_option("Use one split only, such as train.")] = None,
    classes: Annotated[
        Path | None,
        file_option("FILE", "File with the names of the classes to use, one a line. Default: all."),
    ] = None,
    labels: Annotated[
        bool, typer.Option(help="Use the labels of the source, or of folders.")
    ] = True,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Read links that lead out of the folder.")
    ] = False,
    image_column: Annotated[str | None, text_option("Column of the images of a table.")] = None,
    label_column: Annotated[str | None, text_option("Column of the labels of a table.")] = None,
    upload: Annotated[
        bool,
        typer.Option(
            "--upload",
            help="Send the images of this machine to the server: one archive or table, or a folder. Repeat the command "
            "to resume.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until all images are read.")] = True,
) -> None:
    """Register images. Reads the header of every image, decodes a sample, and reports the result."""
    name = dataset_name(name, path)
    if upload:
        check_uploadable(path, follow_links)
    source = given(
        split=split,
        classes=None if classes is None else _lines(classes),
        labels=None if labels else "none",
        links="follow" if follow_links else None,
        image_column=image_column,
        label_column=label_column,
    )
    with connect() as client:
        if upload:
            dataset = upload_images(client, path, name, source)
        else:
            dataset = client.datasets.add(path, name, source)
        if wait:
            dataset, _ = wait_for_images(client.datasets.wait, dataset)
    print_dataset(dataset, with_error=False)
    if dataset.state == "failed":
        note(
            f"The name stays taken until you remove the data set: dasl datasets rm {dataset.id}. Once its files are "
            f"corrected, read it again: dasl datasets refresh {dataset.id}"
        )
        raise fail(f"Data set {dataset.name} failed: {dataset.error_message}")


@app.command("list")
def list_datasets() -> None:
    """List data sets, newest first."""
    columns: Columns[Dataset] = {
        "ID": lambda dataset: dataset.id,
        "NAME": lambda dataset: dataset.name,
        "STATE": lambda dataset: dataset.state,
        "VERSION": lambda dataset: dataset.version if dataset.facts else None,
        "IMAGES": lambda dataset: (dataset.facts or {}).get("num_images"),
        "CLASSES": lambda dataset: (dataset.facts or {}).get("num_classes"),
        "WHERE": lambda dataset: dataset.uri,
    }
    with connect() as client:
        print_records(client.datasets.list(), columns)


@app.command()
def show(dataset: DatasetId) -> None:
    """Show a data set. Its ingest report has image counts and skipped files."""
    with connect() as client:
        record = client.datasets.get(dataset)
        prepared = [] if as_json() else list(client.preparations.list(record.id))
    print_dataset(record, [preparations.describe(preparation) for preparation in prepared])


@app.command()
def rm(dataset: DatasetId, yes: Yes = False) -> None:
    """Remove a data set from the service. The images are not touched, unless they were uploaded: then it asks."""
    with connect() as client:
        record = client.datasets.get(dataset)
        if record.upload is not None:
            confirm_deletion(
                f"data set {record.name} ({record.id}) with its uploaded images, of which the server has no other copy",
                yes,
            )
        client.datasets.delete(record.id)
    images = "The images are not touched" if record.upload is None else "The upload is removed"
    text = f"Removed data set {record.name} ({record.id}). {images}."
    print_result({"deleted": record.id}, text)


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
