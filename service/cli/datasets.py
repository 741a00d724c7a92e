"""The commands `dasl datasets ...`, except those of `preparations` and `preview`."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasl_core.outputs import check_replaceable
from service.cli import console, preparations, preview
from service.cli.dataset_views import DatasetId, print_dataset, wait_for_images, where
from service.cli.formats import size
from service.cli.inputs import (
    Force,
    Yes,
    confirm_deletion,
    connect,
    dataset_name,
    file_option,
    folder,
    given,
    output_file,
    text_option,
)
from service.cli.progress import progress_bars

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.models import Dataset

_MAX_SKIPPED_SHOWN = 10

app = typer.Typer(name="datasets", no_args_is_help=True, help="Manage data sets.")


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
    image_column: Annotated[
        str | None, text_option("Column of the images of a table, or their paths in a list.")
    ] = None,
    label_column: Annotated[
        str | None, text_option("Column of the labels of a table or list.")
    ] = None,
    group_column: Annotated[
        str | None,
        text_option(
            "Column of a table or list with the groups to hold out together, such as patients."
        ),
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
) -> None:
    """Register images. Reads the header of every image, decodes a sample, and reports the result."""
    name = dataset_name(name, path)
    if upload:
        if "://" in path:
            raise typer.BadParameter(
                f"{path} is not on this machine; leave out --upload", param_hint="LOCATION"
            )
        if follow_links:
            raise typer.BadParameter(
                "links out of the folder are not uploaded", param_hint="--follow-links"
            )
    source = given(
        split=split,
        classes=None if classes is None else _lines(classes),
        labels=None if labels else "none",
        links="follow" if follow_links else None,
        image_column=image_column,
        label_column=label_column,
        group_column=group_column,
    )
    with connect() as client:
        if upload:
            dataset = _upload(client, path, name, source)
        else:
            dataset = client.datasets.add(path, name, source)
        if wait:
            dataset, _ = wait_for_images(client.datasets.wait, dataset)
    print_dataset(dataset, with_error=False)
    if dataset.state == "failed":
        from service.wire.datasets import remedy

        advice = remedy(dataset.id, dataset.source, is_upload=dataset.upload is not None)
        console.note(f"{advice}.")
        raise console.fail(f"Data set {dataset.name} failed: {dataset.error_message}")


@app.command("list")
def list_datasets() -> None:
    """List data sets, newest first."""
    shown = {
        **console.columns("id", "name", "state"),
        "VERSION": lambda dataset: dataset.version if dataset.facts else None,
        "IMAGES": lambda dataset: (dataset.facts or {}).get("num_images"),
        "CLASSES": lambda dataset: (dataset.facts or {}).get("num_classes"),
        "WHERE": where,
    }
    with connect() as client:
        console.print_records(client.datasets.list(), shown)


@app.command()
def show(dataset: DatasetId) -> None:
    """Show a data set. Its ingest report has image counts and skipped files."""
    with connect() as client:
        record = client.datasets.get(dataset)
        prepared = [] if console.as_json() else list(client.preparations.list(record.id))
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
    console.print_result({"deleted": record.id}, text)


@app.command()
def refresh(
    dataset: DatasetId,
    wait: Annotated[bool, typer.Option(help="Wait until all images are read.")] = True,
) -> None:
    """Read the images again: those that were added or changed make a new version of the data set.

    It stays usable meanwhile. Jobs keep the version that they were submitted with. Only headers of new and changed
    images are read.
    """
    failed = False
    with connect() as client:
        before = client.datasets.get(dataset)
        record = client.datasets.refresh(before.id)
        if wait:
            record, failed = wait_for_images(client.datasets.wait_for_refresh, record)
    print_dataset(record, with_error=not failed)
    if failed:
        in_use = f"; version {record.version} stays in use" if record.state == "ready" else ""
        raise console.fail(f"The refresh of {record.name} failed{in_use}: {record.error_message}")
    if wait and not console.as_json() and before.state == "ready":
        changes = record.report.changes if record.report is not None else None
        if record.version == before.version:
            console.print_line("No image has changed.")
        elif changes is not None:
            counts = ", ".join(f"{count:,} {name}" for name, count in changes.items())
            console.print_line(f"Version {record.version}: {counts}.")


@app.command()
def versions(
    dataset: DatasetId,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=10**6, help="Maximum number of versions.")
    ] = 20,
) -> None:
    """List the versions of a data set, newest first. A spec names one as DATASET@VERSION."""
    shown = {
        **console.columns(VERSION="number", CREATED="created_at"),
        "IMAGES": lambda version: (version.facts or {}).get("num_images"),
        "ADDED": lambda version: version.changes and version.changes.added,
        "REMOVED": lambda version: version.changes and version.changes.removed,
        "CHANGED": lambda version: version.changes and version.changes.changed,
        "RELABELED": lambda version: version.changes and version.changes.relabeled,
        "": lambda version: "files removed" if version.removed else None,
    }
    with connect() as client:
        dataset_id = client.datasets.get(dataset).id
        pages = client.datasets.versions(dataset_id, page_size=min(limit, 100))
        console.print_records(islice(pages, limit), shown)


@app.command("contact-sheet")
def contact_sheet(
    dataset: DatasetId,
    output: Annotated[Path, output_file("FILE", "JPEG to write.")],
    force: Force = False,
) -> None:
    """Download thumbnails of up to 64 images of a data set, of each class as many."""
    with connect() as client:
        content = client.datasets.contact_sheet(client.datasets.get(dataset).id)
    try:
        check_replaceable({output: hashlib.sha256(content).hexdigest()}, force=force)
        output.write_bytes(content)
    except OSError as error:
        raise console.fail(f"{output} cannot be written: {error.strerror}") from error
    console.print_result({"file": str(output), "size": len(content)}, f"Saved {output}.")


for commands in (preview.dataset_commands, preparations.app):
    app.add_typer(commands)


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{file} cannot be read: {error}", param_hint="--classes"
        ) from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise typer.BadParameter(f"{file} names no class", param_hint="--classes")
    return names


def _upload(client: Client, path: str, name: str, source: dict[str, Any]) -> Dataset:
    """Upload a file or folder, with a bar on a terminal."""
    from service.client.packing import FolderContent, open_content

    content = open_content(Path(path).expanduser())
    if isinstance(content, FolderContent):
        console.note(f"Packing {content.num_images:,} images ({size(content.size)}) ...")
        for skipped in content.skipped[:_MAX_SKIPPED_SHOWN]:
            console.note(f"  left out: {skipped.path} ({skipped.reason})")
        if (hidden := len(content.skipped) - _MAX_SKIPPED_SHOWN) > 0:
            console.note(f"  left out: {hidden} more")
        if files := content.ignored.describe():
            console.note(f"  left out, as their endings are not those of images: {files}")
    is_first = True
    with progress_bars() as on_bytes:

        def on_upload(received: int, total: int) -> None:
            nonlocal is_first
            if is_first and received:
                console.note(f"Resuming: the server has {size(received)} of {size(total)}")
            is_first = False
            on_bytes("upload", received, total)

        return client.datasets.upload_content(content, name, source, on_bytes=on_upload)
