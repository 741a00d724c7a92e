"""The command `dasl usage`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.inputs import connect, text_option, utf8
from service.cli.output import note, print_if_json, print_records

app = typer.Typer()


@app.command()
def usage(
    since: Annotated[
        str | None,
        text_option("Date, or date and time, in UTC; by default 30 days before --to.", "--from"),
    ] = None,
    until: Annotated[
        str | None,
        text_option("Date, or date and time, in UTC, not included; by default now.", "--to"),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="user|token|tag:KEY", help="What to group by.", callback=utf8)
    ] = "token",
) -> None:
    """Show GPU- and CPU-hours: of the tenant with an admin token, else your own."""
    with connect() as client:
        result = client.usage(since=since, until=until, group_by=by)
    if print_if_json(result):
        return
    print_records(
        result.data,
        {
            by.upper() if by in {"user", "token"} else "VALUE": lambda group: group.value,
            "NAME": lambda group: group.name,
            "JOBS": lambda group: group.jobs,
            "GPU-HOURS": lambda group: f"{group.gpu_hours:.1f}",
            "CPU-HOURS": lambda group: f"{group.cpu_hours:.1f}",
        },
        as_json=False,
    )
    if not result.is_complete:
        note(f"Only the first {len(result.data)} are shown")
