"""`dasl datasets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connection import connect
from service.cli.names import dataset_name, folder, known_by
from service.cli.output import AsJson, fail, note, plain, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from service.client.models import Dataset

Given = Annotated[str, typer.Argument(callback=known_by, help="Id or name.")]

_SHOWN_SKIPPED = 10


def register(app: typer.Typer) -> None:
    """Add the commands."""
    datasets = typer.Typer(no_args_is_help=True, help="Folders of images to train on.")
    datasets.command()(add)
    datasets.command("list")(list_datasets)
    datasets.command()(show)
    datasets.command()(rm)
    app.add_typer(datasets, name="datasets")


def add(
    path: Annotated[
        str,
        typer.Argument(
            callback=folder,
            help="Folder of images, as the server sees it; its subfolders are classes.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name for it; the folder's own when not given.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the images are read.")] = True,
    as_json: AsJson = False,
) -> None:
    """Register a folder of images and report what was found in it."""
    from service.client.errors import DatasetFailed

    chosen = dataset_name(name, path)
    with connect() as client:
        dataset = client.datasets.add(path, chosen)
        if wait:
            if not as_json:
                note(f"Reading the images of {dataset.name} ({dataset.id}) ...")
            try:
                dataset = dataset.wait()
            except DatasetFailed as failed:
                dataset = failed.dataset
    _print(dataset, as_json)
    if dataset.state == "failed":
        note(f"It keeps its name until it is removed: dasl datasets rm {dataset.id}")
        raise fail(f"Data set {dataset.name} failed: {dataset.error_message}")


def list_datasets(as_json: AsJson = False) -> None:
    """List all data sets, newest first."""
    with connect() as client:
        found = list(client.datasets.list())
    if as_json:
        print_json([plain(dataset) for dataset in found])
        return
    rows = []
    for dataset in found:
        facts = dataset.facts or {}
        images, classes = facts.get("num_images"), facts.get("num_classes")
        rows.append([dataset.id, dataset.name, dataset.state, images, classes, dataset.uri])
    print_table(["ID", "NAME", "STATE", "IMAGES", "CLASSES", "WHERE"], rows)


def show(dataset: Given, as_json: AsJson = False) -> None:
    """Show a data set and the report of its ingest."""
    with connect() as client:
        found = client.datasets.get(dataset)
    _print(found, as_json)


def rm(dataset: Given, as_json: AsJson = False) -> None:
    """Forget a data set; the images themselves stay."""
    with connect() as client:
        found = client.datasets.get(dataset)
        client.datasets.delete(found.id)
    if as_json:
        print_json({"deleted": found.id})
    else:
        say(f"Forgot {found.name} ({found.id}); its images stay where they are.")


def _print(dataset: Dataset, as_json: bool) -> None:
    if as_json:
        print_json(plain(dataset))
        return
    facts = dataset.facts or {}
    print_facts(
        [
            ("id", dataset.id),
            ("name", dataset.name),
            ("where", dataset.uri),
            ("state", dataset.state),
            ("images", facts.get("num_images")),
            ("classes", facts.get("num_classes")),
            ("median size", f"{facts['median_size']} pixels" if "median_size" in facts else None),
            ("error", dataset.error_message),
        ]
    )
    report = dataset.report
    if report is not None and report.num_skipped:
        say(
            f"{report.num_skipped} {'file was' if report.num_skipped == 1 else 'files were'} skipped:"
        )
        for file in report.skipped[:_SHOWN_SKIPPED]:
            say(f"  {file.path}: {file.reason}")
        left = report.num_skipped - min(len(report.skipped), _SHOWN_SKIPPED)
        if left:
            say(f"  ... and {left} more (all of them: dasl datasets show {dataset.id} --json)")
