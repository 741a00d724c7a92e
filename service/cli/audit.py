"""The commands `dasl audit` and `dasl usage`."""

from itertools import islice
from typing import Annotated

import typer

from service.cli import console
from service.cli.inputs import connect, id_or_name, text_option, utf8

app = typer.Typer()


@app.command()
def audit(
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN_ID",
            help="Show only requests with this token.",
            callback=lambda value: value and id_or_name(value),
        ),
    ] = None,
    since: Annotated[
        str | None, text_option("Show only requests since this date, or date and time, in UTC.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10**6, help="Maximum number of entries.")] = 50,
) -> None:
    """Show the audit log, newest first. Needs an admin token."""
    with connect() as client:
        pages = client.audit.list(token=token, since=since, page_size=min(limit, 200))
        console.print_records(
            islice(pages, limit),
            {
                **console.columns("at", TOKEN="token_id", NAME="token_name", FROM="address"),
                **console.columns("status"),
                "REQUEST": lambda entry: f"{entry.method} {entry.path}",
            },
        )


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
    if console.print_if_json(result):
        return
    console.print_records(
        result.data,
        {
            by.upper() if by in {"user", "token"} else "VALUE": lambda group: group.value,
            **console.columns("name", "jobs"),
            "GPU-HOURS": lambda group: f"{group.gpu_hours:.1f}",
            "CPU-HOURS": lambda group: f"{group.cpu_hours:.1f}",
        },
    )
    if not result.is_complete:
        console.note(f"Only the first {len(result.data)} are shown")
