"""Commands that show what is stored, and delete it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import console
from service.cli.formats import size
from service.cli.inputs import Yes, confirm_deletion, connect, ids_or_names
from service.client.errors import ApiError

if TYPE_CHECKING:
    from service.client import Client

app = typer.Typer()


# A record to delete: as part of a sentence, its id, and the function that deletes it.
_Deletion = tuple[str, str, Callable[[str], object]]


@app.command()
def delete(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB|CHECKPOINT|PREVIEW|PREPARATION|MODEL_RUN|DATASET ...",
            callback=ids_or_names,
            help="Id or name of a data set; id, its beginning, or name of a job that has ended; id of a checkpoint, a preview, "
            "a preparation or a model run.",
        ),
    ],
    only_checkpoints: Annotated[
        bool,
        typer.Option(
            "--only-checkpoints",
            help="Keep the jobs, and of their checkpoints the newest, final, best and pinned ones.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete jobs with all their files, checkpoints, previews, model runs or data sets; stop preparations.

    Images are not touched, unless uploaded. What a preparation has decoded stays in the cache.
    """
    with connect() as client:
        if only_checkpoints:
            _delete_checkpoints(client, targets, yes)
            return
        deletions = [_find(client, target) for target in targets]
        confirm_deletion(" and ".join(what for what, _, _ in deletions), yes)
        for what, id, remove in deletions:
            remove(id)
            console.print_result({"deleted": id}, f"Deleted {what}.")


def _delete_checkpoints(client: Client, targets: list[str], yes: bool) -> None:
    jobs = [client.jobs.get(target) for target in targets]
    names = ", ".join(f"{job.name} ({job.id})" for job in jobs)
    confirm_deletion(f"older checkpoints of {names}", yes)
    for job in jobs:
        result = client.jobs.delete_checkpoints(job.id)
        count = f"{result.deleted} checkpoint{'' if result.deleted == 1 else 's'} of {job.id}"
        facts = {"job": job.id, "deleted": result.deleted, "bytes": result.bytes}
        console.print_result(facts, f"Deleted {count} ({size(result.bytes)}).")


def _find(client: Client, target: str) -> _Deletion:
    """Find a record by its id, or by the name of a data set or else of a job."""
    job = "job {0.name} ({0.id}) with its checkpoints, metrics, logs and plots"
    kinds: dict[str, tuple[Any, str]] = {
        "job_": (client.jobs, job),
        "ckpt_": (client.checkpoints, "checkpoint {0.id} of step {0.step}"),
        "prev_": (client.previews, "preview {0.id} of {0.images} images"),
        "prep_": (client.preparations, "preparation {0.id} of images of {0.image_size} pixels"),
        "mrun_": (client.model_runs, "{0.kind} {0.id} of checkpoint {0.checkpoint_id}"),
    }
    for prefix, (records, what) in kinds.items():
        if target.startswith(prefix):
            return _deletion(records, target, what)
    try:
        dataset = client.datasets.get(target)
    except ApiError as not_a_dataset:
        if not_a_dataset.status != 404:
            raise
        try:
            return _deletion(client.jobs, target, job)
        except ApiError as error:
            raise (not_a_dataset if error.status == 404 else error) from None
    images = "are not touched" if dataset.upload is None else "were uploaded, and are removed"
    what = f"data set {dataset.name} ({dataset.id}); its images {images}"
    return what, dataset.id, client.datasets.delete


def _deletion(records: Any, target: str, what: str) -> _Deletion:
    record = records.get(target)
    return what.format(record), record.id, records.delete


@app.command()
def storage() -> None:
    """Show what checkpoints, plots, previews, logs and metrics take, and the largest jobs. Needs an admin token."""
    with connect() as client:
        report = client.storage()
    if console.print_if_json(report):
        return
    store, metrics = report.store, report.metrics
    more = "more than " if metrics.more else ""
    limit = None if store.max_bytes is None else size(store.max_bytes)
    free = None
    if store.free_bytes is not None:
        free = f"{size(store.free_bytes)} of {size(store.total_bytes)}"
    console.print_facts(
        [
            ("checkpoints", f"{size(report.checkpoints.bytes)} in {report.checkpoints.count}"),
            ("plots and others", f"{size(report.artifacts.bytes)} in {report.artifacts.count}"),
            ("logs", f"of {report.logs.count} attempts"),
            ("metrics", f"{more}{metrics.count:,} values"),
            ("data sets", report.datasets),
            ("previews", f"{size(report.previews.bytes)} in {report.previews.count}"),
            (
                "embeddings, exports",
                f"{size(report.model_runs.bytes)} in {report.model_runs.count}",
            ),
            ("uploads", f"{size(report.uploads.bytes)} in {report.uploads.count}"),
            ("limit of all tenants", limit),
            ("free on the disk", free),
        ]
    )
    if len(store.tenants) > 1:
        console.print_line()
        rows = [[t.tenant, size(t.bytes), size(t.uploads)] for t in store.tenants]
        uploads = sum(tenant.uploads for tenant in store.tenants)
        rows.append(["all of these", size(store.bytes), size(uploads)])
        console.print_table(["TENANT", "SIZE", "UPLOADS"], rows)
    if report.deleted_jobs:
        console.note(f"Deleted jobs that are still being removed: {report.deleted_jobs}")
    if report.largest_jobs:
        console.print_line()
        rows = [[job.id, job.name, job.status, size(job.bytes)] for job in report.largest_jobs]
        console.print_table(["LARGEST JOBS", "NAME", "STATUS", "SIZE"], rows)
