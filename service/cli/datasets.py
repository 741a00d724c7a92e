"""The commands `dasl datasets ...`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import connect, dataset_name, folder, id_or_name, optional_utf8
from service.cli.output import (
    AsJson,
    fail,
    note,
    plain,
    print_facts,
    print_json,
    print_line,
    print_records,
    print_result,
    size,
)
from service.cli.preview import preview_dataset
from service.cli.uploads import check_uploadable, upload_images

if TYPE_CHECKING:
    from service.client.models import Dataset

DatasetId = Annotated[
    str,
    typer.Argument(metavar="DATASET", callback=id_or_name, help="Id or name of the data set."),
]

_MAX_SKIPPED_SHOWN = 10
_SECONDS_BETWEEN_NOTES = 10.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    datasets = typer.Typer(no_args_is_help=True, help="Manage data sets.")
    datasets.command()(add)
    datasets.command("list")(list_datasets)
    datasets.command()(show)
    datasets.command()(rm)
    datasets.command("preview")(preview_dataset)
    app.add_typer(datasets, name="datasets")


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
        str | None, typer.Option(help="Name of the data set. Default: the folder's name.")
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
                    dataset.id, on_poll=(lambda _: None) if as_json else _Progress()
                )
            except DatasetFailed as failed:
                dataset = failed.dataset
    _print(dataset, as_json)
    if dataset.state == "failed":
        note(f"Its name stays taken until you remove it: dasl datasets rm {dataset.id}")
        raise fail(f"Data set {dataset.name} failed: {dataset.error_message}")


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
            "IMAGES": lambda dataset: (dataset.facts or {}).get("num_images"),
            "CLASSES": lambda dataset: (dataset.facts or {}).get("num_classes"),
            "WHERE": lambda dataset: dataset.uri,
        },
        as_json,
    )


def show(dataset: DatasetId, as_json: AsJson = False) -> None:
    """Show a data set. Its ingest report has image counts and skipped files."""
    with connect() as client:
        _print(client.datasets.get(dataset), as_json)


def rm(dataset: DatasetId, as_json: AsJson = False) -> None:
    """Remove a data set from the service. The images are not touched, unless they were uploaded."""
    with connect() as client:
        record = client.datasets.get(dataset)
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


class _Progress:
    """Notes the progress of an ingest every ten seconds."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()

    def __call__(self, dataset: Dataset) -> None:
        now, progress = time.monotonic(), _progress(dataset)
        if progress is not None and now - self._shown_at >= _SECONDS_BETWEEN_NOTES:
            note(f"  {progress}")
            self._shown_at = now


def _progress(dataset: Dataset) -> str | None:
    progress = dataset.progress
    if progress is None or progress.images_total is None:
        return None
    return f"{progress.images_read or 0:,} of {progress.images_total:,} images read"


def _uploaded(dataset: Dataset) -> str | None:
    if (upload := dataset.upload) is None:
        return None
    return f"{size(upload.get('received'))} of {size(upload.get('size'))}"


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
            ("upload", _uploaded(dataset)),
            ("progress", _progress(dataset)),
            ("images", facts.get("num_images")),
            ("classes", facts.get("num_classes")),
            ("median shorter side", f"{facts['median_size']} pixels" if facts else None),
            ("pixels", f"{facts['bands']} x {facts['dtype']}" if "dtype" in facts else None),
            ("error", dataset.error_message),
        ]
    )
    report = dataset.report
    if report is None:
        return
    for warning in report.warnings:
        print_line(f"Warning: {warning}.")
    if not report.num_skipped:
        return
    print_line(f"Skipped {report.num_skipped} {'file' if report.num_skipped == 1 else 'files'}:")
    for file in report.skipped[:_MAX_SKIPPED_SHOWN]:
        print_line(f"  {file.path}: {file.reason}")
    hidden = report.num_skipped - min(len(report.skipped), _MAX_SKIPPED_SHOWN)
    if hidden:
        print_line(f"  ... and {hidden} more (list all: dasl datasets show {dataset.id} --json)")
