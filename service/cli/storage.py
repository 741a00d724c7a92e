"""Commands that show what is stored, and delete it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import Yes, confirm_deletion, connect, id_or_name
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
    from service.client.sync.models import Job

app = typer.Typer()


@app.command()
def delete(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB|CHECKPOINT|PREVIEW|PREPARATION|MODEL_RUN|DATASET ...",
            callback=_ids_or_names,
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
    as_json: AsJson = False,
) -> None:
    """Delete jobs with all their files, checkpoints, previews, model runs or data sets; stop preparations.

    Images are not touched, unless uploaded. What a preparation has decoded stays in the cache.
    """
    with connect() as client:
        if only_checkpoints:
            _delete_checkpoints(client, targets, yes, as_json)
            return
        described = [_describe(client, target) for target in targets]
        if not yes:
            confirm_deletion(" and ".join(what for what, _ in described))
        for what, target in described:
            _delete(client, target)
            print_result({"deleted": target}, f"Deleted {what}.", as_json)


def _ids_or_names(values: list[str]) -> list[str]:
    return [id_or_name(value) for value in values]


def _delete_checkpoints(client: Client, targets: list[str], yes: bool, as_json: bool) -> None:
    jobs = [client.jobs.get(target) for target in targets]
    if not yes:
        confirm_deletion(
            f"older checkpoints of {', '.join(f'{job.name} ({job.id})' for job in jobs)}"
        )
    for job in jobs:
        gone = client.jobs.delete_checkpoints(job.id)
        count = f"{gone.deleted} checkpoint{'' if gone.deleted == 1 else 's'} of {job.id}"
        facts = {"job": job.id, "deleted": gone.deleted, "bytes": gone.bytes}
        print_result(facts, f"Deleted {count} ({size(gone.bytes)}).", as_json)


def _delete(client: Client, target: str) -> None:
    if target.startswith("job_"):
        client.jobs.delete(target)
    elif target.startswith("ckpt_"):
        client.checkpoints.delete(target)
    elif target.startswith("prev_"):
        client.previews.delete(target)
    elif target.startswith("prep_"):
        client.preparations.delete(target)
    elif target.startswith("mrun_"):
        client.model_runs.delete(target)
    else:
        client.datasets.delete(target)


def _describe(client: Client, target: str) -> tuple[str, str]:
    """Return what is to be deleted, as part of a sentence, and its id."""
    from service.client.errors import ApiError

    if target.startswith("job_"):
        job = client.jobs.get(target)  # the beginning of an id is enough
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
    if target.startswith("mrun_"):
        run = client.model_runs.get(target)
        return f"{run.kind} {run.id} of checkpoint {run.checkpoint_id}", run.id
    try:
        dataset = client.datasets.get(target)
    except ApiError as error:
        if error.status != 404:
            raise
        named = _named(client, target)
        if named is None:
            raise
        return _describe(client, named.id)
    images = "are not touched" if dataset.upload is None else "were uploaded, and are removed"
    return f"data set {dataset.name} ({dataset.id}); its images {images}", dataset.id


def _named(client: Client, name: str) -> Job | None:
    from service.client.errors import ApiError

    try:
        return client.jobs.get(name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


@app.command()
def storage(as_json: AsJson = False) -> None:
    """Show what checkpoints, plots, previews, logs and metrics take, and the largest jobs. Needs an admin token."""
    with connect() as client:
        report = client.storage()
    if as_json:
        print_json(plain(report))
        return
    store, metrics = report.store, report.metrics
    more = "more than " if metrics.more else ""
    limit = None if store.max_bytes is None else size(store.max_bytes)
    free = None
    if store.free_bytes is not None:
        free = f"{size(store.free_bytes)} of {size(store.total_bytes)}"
    print_facts(
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
