"""`dasl metrics`: the training metrics of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.inputs import JobId, connect, id_of_job
from service.cli.output import AsCsv, note, number, print_csv, print_if_json, print_table
from service.cli.views import sparkline

app = typer.Typer()


@app.command()
def metrics(
    job: JobId,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Show only this metric, such as loss. Can be repeated. Default: all."),
    ] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="First step to show.")] = None,
    max_points: Annotated[
        int,
        typer.Option(
            min=2, max=1_000_000, help="Steps to show at most; minima and maxima are kept."
        ),
    ] = 10_000,
    as_csv: AsCsv = False,
) -> None:
    """Show the training metrics of a job. With --csv, print one line for each step."""
    with connect() as client:
        job = id_of_job(client, job)
        columns = client.jobs.metrics(
            job, name=name or None, from_step=from_step, max_points=max_points
        )
    if print_if_json(columns):
        return
    if as_csv:
        rows = zip(columns.step, columns.time, *columns.values.values(), strict=True)
        print_csv(["step", "time", *columns.values], rows)
        return
    curves = []
    for metric, values in columns.values.items():
        if curve := [value for value in values if value is not None]:
            facts = map(number, (curve[-1], min(curve), max(curve)))
            curves.append([metric, *facts, sparkline(curve)])
    if not curves:
        note("There are no metrics: none were reported yet, or they were removed by retention.")
        return
    print_table(["METRIC", "LAST", "SMALLEST", "LARGEST", "CURVE"], curves)
