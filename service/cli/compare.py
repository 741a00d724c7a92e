"""The command `dasl compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated

import typer

from dasl_core.headlines import HEADLINES, denominator, is_share_of_images, number_of
from dasl_core.vocabulary import TRAINED
from service.cli import console
from service.cli.formats import duration, number
from service.cli.inputs import connect, ids_or_names

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.models import Job

app = typer.Typer()


@dataclass(frozen=True)
class _Compared:
    """A job with the metrics of its newest evaluation, and the number of images that it is evaluated on."""

    job: Job
    metrics: Mapping[str, float]
    held_out_images: int | None

    @property
    def seconds(self) -> float | None:
        """Time between the first start and the end, waiting between attempts included."""
        if self.job.started_at is None or self.job.finished_at is None:
            return None
        return (self.job.finished_at - self.job.started_at).total_seconds()


@app.command()
def compare(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            callback=ids_or_names,
            help="Two or more jobs: ids or their beginnings, names, or `last`.",
        ),
    ],
    as_csv: console.AsCsv = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of a table.")
    ] = False,
) -> None:
    """Compare jobs: state, time, headline metrics of the newest evaluation, and resolved settings that differ."""
    from dasl_core.spec.differences import differing

    if as_csv + as_markdown + console.as_json() > 1:
        raise typer.BadParameter("choose one of --csv, --markdown and --json")
    with connect() as client:
        compared = [_fetch(client, reference) for reference in jobs]
    if len({entry.job.id for entry in compared}) < 2:
        raise typer.BadParameter("name two different jobs or more")
    settings = differing([_settings(entry.job) for entry in compared])
    if console.print_if_json(
        [_as_dict(entry, settings, column) for column, entry in enumerate(compared)]
    ):
        return
    headers = ["", *(entry.job.name for entry in compared)]
    rows = _rows(compared, settings, exact=as_csv)
    if as_csv:
        console.print_csv(headers, rows)
    elif as_markdown:
        console.print_line(_markdown(headers, rows))
    else:
        console.print_table(headers, rows)
    for remark in _remarks(compared):
        console.note(remark)


def _fetch(client: Client, reference: str) -> _Compared:
    job = client.jobs.get(reference)
    # The embedding of a supervised method, which counts, is recorded after its backbone.
    trained = [e for e in client.jobs.evaluations(job.id) if e.subject in TRAINED]
    newest = trained[-1].metrics if trained else {}
    values = {name: number_of(newest, name) for name in HEADLINES}
    metrics = {name: value for name, value in values.items() if value is not None}
    return _Compared(job, metrics, _held_out_images(client, job))


def _settings(job: Job) -> dict[str, object]:
    """Return the resolved settings of a job, with its data set and version by name: a spec may have the name or the id."""
    settings: dict[str, object] = dict(job.resolved or {})
    settings["dataset"] = f"{job.dataset.name}@{job.dataset_version}"
    return settings


def _held_out_images(client: Client, job: Job) -> int | None:
    """Return how many images a job is evaluated on, as its data set has them; None if that is not known."""
    evaluate = (job.resolved or {}).get("evaluate") or {}
    dataset, share = job.dataset.id, (evaluate.get("holdout") or {}).get("fraction")
    version: int | None = job.dataset_version
    if evaluate.get("dataset") is not None:
        # By name or id, perhaps with a version.
        dataset, share = evaluate["dataset"].partition("@")[0], 1.0
        version = job.evaluate_dataset_version
    if share is None or evaluate.get("gallery") is not None:
        return None
    from service.client.errors import ApiError

    try:
        dataset_id = client.datasets.get(dataset).id
        versions = {version.number: version for version in client.datasets.versions(dataset_id)}
    except ApiError as error:
        if error.status != 404:  # it was deleted
            raise
        return None
    facts = versions[version].facts if version in versions else None
    return round(share * facts["num_images"]) if facts else None


def _rows(
    compared: Sequence[_Compared], settings: Mapping[str, Sequence[object]], *, exact: bool
) -> list[list[object]]:
    """Return a row for each quantity.

    Args:
        exact: metrics with all digits and times in seconds, for programs.
    """
    jobs = [entry.job for entry in compared]
    rows: list[list[object]] = [
        ["id", *(job.id for job in jobs)],
        ["status", *(job.status for job in jobs)],
        ["epoch", *(job.progress.epoch if job.progress else None for job in jobs)],
    ]
    times = [entry.seconds for entry in compared]
    rows.append(["seconds", *times] if exact else ["time", *map(duration, times)])
    for name in HEADLINES:
        values = [entry.metrics.get(name) for entry in compared]
        if any(value is not None for value in values):
            rows.append([name, *(values if exact else map(number, values))])
    rows += [[name, *map(_setting, values)] for name, values in settings.items()]
    return rows


def _setting(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = []
    for row in [headers, ["---"] * len(headers), *rows]:
        cells = ["" if cell is None else str(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _as_dict(
    entry: _Compared, settings: Mapping[str, Sequence[object]], column: int
) -> dict[str, object]:
    return {
        "id": entry.job.id,
        "name": entry.job.name,
        "status": entry.job.status,
        "epoch": entry.job.progress.epoch if entry.job.progress else None,
        "seconds": entry.seconds,
        "held_out_images": entry.held_out_images,
        "metrics": dict(entry.metrics),
        "settings": {name: values[column] for name, values in settings.items()},
    }


def _remarks(compared: Sequence[_Compared]) -> list[str]:
    """Return what the metrics do not tell: differences that may be chance, different images, single runs."""
    remarks = []
    counts = {entry.held_out_images for entry in compared}
    images = counts.pop() if len(counts) == 1 else None
    if counts:
        remarks.append(
            "The jobs are evaluated on different numbers of images, so their metrics cannot be compared."
        )
    shares = filter(is_share_of_images, HEADLINES)
    for name in shares if images else ():
        evaluated = denominator(name, images or 0)
        if (margin := _margin(compared, name, evaluated)) is not None:
            remarks.append(
                f"{name}: differences below {100 * margin:.3g} points may be chance ({evaluated:,} held-out images)."
            )
    remarks.append(
        "Another seed changes these metrics, too: `dasl experiments` compares variants over several seeds."
    )
    return remarks


def _margin(compared: Sequence[_Compared], metric: str, images: int) -> float | None:
    """Return below which difference two jobs may be equally good; None if all differ by more."""
    values = [entry.metrics[metric] for entry in compared if metric in entry.metrics]
    pairs = [(one, other, _noise(one, other, images)) for one, other in combinations(values, 2)]
    return max((noise for one, other, noise in pairs if abs(one - other) < noise), default=None)


def _noise(one: float, other: float, images: int) -> float:
    """Return twice the standard error of the difference of two shares, or one image if that is more.

    Both are shares of the same images, so that the error is smaller than this one if the jobs err on the same.
    """
    share = (one + other) / 2
    return max(2 * math.sqrt(2 * share * (1 - share) / images), 1 / images)
