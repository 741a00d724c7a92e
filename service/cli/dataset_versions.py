"""The commands `dasl datasets refresh`, `versions` and `contact-sheet`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.dataset_views import DatasetId, print_dataset, wait_for_images
from service.cli.inputs import connect, output_file
from service.cli.output import Columns, as_json, fail, print_line, print_records, print_result

if TYPE_CHECKING:
    from service.wire.datasets import VersionView

app = typer.Typer()


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
        raise fail(f"The refresh of {record.name} failed{in_use}: {record.error_message}")
    if wait and not as_json() and before.state == "ready":
        changes = record.report.changes if record.report is not None else None
        if record.version == before.version:
            print_line("No image has changed.")
        elif changes is not None:
            counts = ", ".join(f"{count:,} {name}" for name, count in changes.items())
            print_line(f"Version {record.version}: {counts}.")


@app.command()
def versions(
    dataset: DatasetId,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, help="Maximum number of versions.")
    ] = 20,
) -> None:
    """List the versions of a data set, newest first. A spec names one as DATASET@VERSION."""
    columns: Columns[VersionView] = {
        "VERSION": lambda version: version.number,
        "CREATED": lambda version: version.created_at,
        "IMAGES": lambda version: (version.facts or {}).get("num_images"),
        "ADDED": lambda version: version.changes and version.changes.added,
        "REMOVED": lambda version: version.changes and version.changes.removed,
        "CHANGED": lambda version: version.changes and version.changes.changed,
        "": lambda version: "files removed" if version.removed else None,
    }
    with connect() as client:
        dataset_id = client.datasets.get(dataset).id
        pages = client.datasets.versions(dataset_id, page_size=min(limit, 100))
        print_records(islice(pages, limit), columns)


@app.command("contact-sheet")
def contact_sheet(
    dataset: DatasetId, output: Annotated[Path, output_file("FILE", "JPEG to write.")]
) -> None:
    """Download thumbnails of up to 64 images of a data set, of each class as many."""
    with connect() as client:
        content = client.datasets.contact_sheet(client.datasets.get(dataset).id)
    try:
        output.write_bytes(content)
    except OSError as error:
        raise fail(f"{output} cannot be written: {error.strerror}") from error
    print_result({"file": str(output), "size": len(content)}, f"Saved {output}.")
