"""Commands that show what is stored, and delete it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import connect, id_or_name
from service.cli.output import (
    AsJson,
    note,
    plain,
    print_facts,
    print_json,
    print_line,
    print_result,
    print_table,
    size,
)

if TYPE_CHECKING:
    from service.client import Client


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(delete)
    app.command()(storage)


def delete(
    target: Annotated[
        str,
        typer.Argument(
            metavar="JOB|CHECKPOINT|PREVIEW|PREPARATION|DATASET",
            callback=id_or_name,
            help="Id of a job that has ended, of a checkpoint, a preview or a preparation; id or name of a data set.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a job with all its files, a checkpoint, a preview, or a data set; stop a preparation.

    Images are not touched, unless uploaded. What a preparation has decoded stays in the cache.
    """
    with connect() as client:
        what, target = _describe(client, target)
        if not yes:
            _confirm(what)
        if target.startswith("job_"):
            client.jobs.delete(target)
        elif target.startswith("ckpt_"):
            client.checkpoints.delete(target)
        elif target.startswith("prev_"):
            client.previews.delete(target)
        elif target.startswith("prep_"):
            client.preparations.delete(target)
        else:
            client.datasets.delete(target)
    print_result({"deleted": target}, f"Deleted {what}.", as_json)


def _describe(client: Client, target: str) -> tuple[str, str]:
    """Return what is to be deleted, as part of a sentence, and its id."""
    if target.startswith("job_"):
        job = client.jobs.get(target)
        return f"job {job.name} ({job.id}) with its checkpoints, metrics, logs and plots", job.id
    if target.startswith("ckpt_"):
        checkpoint = client.checkpoints.get(target)
        return f"checkpoint {checkpoint.id} of step {checkpoint.step}", checkpoint.id
    if target.startswith("prev_"):
        preview = client.previews.get(target)
        return f"preview {preview.id} of {preview.images} images", preview.id
    if target.startswith("prep_"):
        preparation = client.preparations.get(target)
        return (
            f"preparation {preparation.id} of images of {preparation.image_size} pixels",
            preparation.id,
        )
    dataset = client.datasets.get(target)
    images = "are not touched" if dataset.upload is None else "were uploaded, and are removed"
    return f"data set {dataset.name} ({dataset.id}); its images {images}", dataset.id


def _confirm(what: str) -> None:
    """Ask on the terminal; without one, require `--yes`."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for confirmation; add --yes")
    typer.confirm(f"Delete {what}?", abort=True, err=True)


def storage(as_json: AsJson = False) -> None:
    """Show what checkpoints, plots, previews, logs and metrics take, and the largest jobs. Needs an admin token."""
    with connect() as client:
        report = client.storage()
    if as_json:
        print_json(plain(report))
        return
    store, metrics = report.store, report.metrics
    more = "more than " if metrics.get("more") else ""
    limit = None if store.max_bytes is None else size(store.max_bytes)
    free = None
    if store.free_bytes is not None:
        free = f"{size(store.free_bytes)} of {size(store.total_bytes)}"
    print_facts(
        [
            ("checkpoints", f"{size(report.checkpoints.bytes)} in {report.checkpoints.count}"),
            ("plots and others", f"{size(report.artifacts.bytes)} in {report.artifacts.count}"),
            ("logs", f"of {report.logs.get('count', 0)} attempts"),
            ("metrics", f"{more}{metrics.get('count', 0):,} values"),
            ("data sets", report.datasets),
            ("previews", f"{size(report.previews.bytes)} in {report.previews.count}"),
            ("uploads", f"{size(report.uploads.bytes)} in {report.uploads.count}"),
            ("limit of all tenants", limit),
            ("free on the disk", free),
        ]
    )
    if len(store.tenants) > 1:
        print_line()
        rows = [[each.tenant, size(each.bytes), size(each.uploads)] for each in store.tenants]
        uploads = sum(each.uploads for each in store.tenants)
        rows.append(["all of these", size(store.bytes), size(uploads)])
        print_table(["TENANT", "SIZE", "UPLOADS"], rows)
    if report.deleted_jobs:
        note(f"Deleted jobs that are still being removed: {report.deleted_jobs}")
    if report.largest_jobs:
        print_line()
        rows = [[job.id, job.name, job.status, size(job.bytes)] for job in report.largest_jobs]
        print_table(["LARGEST JOBS", "NAME", "STATUS", "SIZE"], rows)
