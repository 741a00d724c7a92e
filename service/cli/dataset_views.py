"""How `dasl datasets` shows a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from dasl_core.text import describe_duplicates
from service.cli import console
from service.cli.formats import duration, size
from service.cli.inputs import id_argument
from service.cli.progress import progress_notes

if TYPE_CHECKING:
    from service.client.models import Preparation
    from service.client.sync.models import Dataset

DatasetId = Annotated[str, id_argument("DATASET", "Id or name of the data set.")]

_MAX_SKIPPED_SHOWN = 10
_MAX_CLASSES_SHOWN = 10
# What the numbers of an ingest's phases count.
_READ = {
    "headers": "headers read",
    "sample": "images of the sample decoded",
    "comparison": "files of equal size compared",
}


def wait_for_images(wait: Callable[..., Dataset], dataset: Dataset) -> tuple[Dataset, bool]:
    """Wait for an ingest or a refresh, and return the data set and whether it failed."""
    from service.client.errors import DatasetFailed

    console.hint(f"Reading the images of {dataset.name} ({dataset.id}) ...")
    try:
        return wait(dataset.id, on_poll=progress_notes(progress_of)), False
    except DatasetFailed as error:
        return error.dataset, True


def progress_of(record: Dataset | Preparation) -> str | None:
    """Return what is read, and how much of it, if that is known."""
    progress = record.progress
    if progress is None or progress.images_total is None:
        return None
    if progress.phase == "listing":
        return f"{progress.images_total:,} images found"
    seconds = progress.seconds_left
    estimate = "" if seconds is None else f", about {duration(seconds)} left"
    what = _READ.get(progress.phase or "", "images read")
    return f"{progress.images_read or 0:,} of {progress.images_total:,} {what}{estimate}"


def where(dataset: Dataset) -> str:
    """Return the location of the images; of an upload its file, as the path is one of the server's own."""
    upload = dataset.upload
    return dataset.uri if upload is None else f"uploaded: {upload.filename}"


def _pixels(dataset: Dataset) -> str | None:
    """Describe the bands and types of the images, and what they are read as where that differs."""
    facts = dataset.facts or {}
    if "dtype" not in facts:
        return None
    read_as = f"{facts['bands']} x {facts['dtype']}"
    kinds = dataset.report.pixels.get("kinds") if dataset.report else None
    if not kinds or [*kinds] == [read_as]:
        return read_as
    of_images = [*kinds] if len(kinds) == 1 else [f"{count} of {k}" for k, count in kinds.items()]
    return f"{', '.join(of_images)}; read as {read_as}"


def _source(dataset: Dataset) -> list[tuple[str, str | None]]:
    """Describe which images are used, and where their labels are, as far as `dasl datasets add` was told."""
    source = dataset.source or {}
    classes = source.get("classes") or ()
    some = ", ".join(classes[:_MAX_CLASSES_SHOWN])
    more = len(classes) - _MAX_CLASSES_SHOWN
    names = ("labels", "links", "image_column", "label_column", "group_column")
    return [
        ("split", source.get("split")),
        ("only classes", f"{some}, and {more} more" if more > 0 else some or None),
        *((name.replace("_", " "), source.get(name)) for name in names),
    ]


def _refresh(dataset: Dataset, with_error: bool) -> str | None:
    refresh = dataset.refresh
    if refresh is None:
        return None
    has_error = with_error and refresh.error is not None
    return f"{refresh.state}: {dataset.error_message}" if has_error else refresh.state


def print_dataset(
    dataset: Dataset, prepared: Sequence[str] = (), *, with_error: bool = True
) -> None:
    """Print a data set, and the files that its ingest has skipped.

    Args:
        prepared: descriptions of its preparations, which JSON leaves out.
        with_error: whether to say why its ingest failed, which JSON says always.
    """
    if console.print_if_json(dataset):
        return
    facts, upload = dataset.facts or {}, dataset.upload
    console.print_facts(
        [
            ("id", dataset.id),
            ("name", dataset.name),
            ("where", where(dataset)),
            *_source(dataset),
            ("state", dataset.state),
            ("upload", upload and f"{size(upload.received)} of {size(upload.size)}"),
            ("version", dataset.version if facts else None),
            ("refresh", _refresh(dataset, with_error)),
            ("progress", progress_of(dataset)),
            ("images", facts.get("num_images")),
            ("classes", facts.get("num_classes")),
            ("median shorter side", f"{facts['median_size']} pixels" if facts else None),
            ("pixels", _pixels(dataset)),
            ("error", dataset.error_message if with_error and dataset.refresh is None else None),
            *(("prepared", description) for description in prepared),
        ]
    )
    report = dataset.report
    if report is None:
        return
    for warning in report.warnings:
        console.print_line(f"Warning: {warning}.")
    for sentence in (*report.unused, *describe_duplicates(report.duplicates)):
        console.print_line(sentence)
    if not report.num_skipped:
        return
    console.print_line(
        f"Skipped {report.num_skipped} {'file' if report.num_skipped == 1 else 'files'}:"
    )
    for file in report.skipped[:_MAX_SKIPPED_SHOWN]:
        console.print_line(f"  {file.path}: {file.reason}")
    hidden = report.num_skipped - min(len(report.skipped), _MAX_SKIPPED_SHOWN)
    if hidden:
        console.print_line(
            f"  ... and {hidden} more (list all: dasl datasets show {dataset.id} --json)"
        )
