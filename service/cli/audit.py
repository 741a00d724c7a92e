"""The command `dasl audit`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from service.cli.inputs import connect, id_or_name, text_option
from service.cli.output import print_records

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
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 50,
) -> None:
    """Show the audit log, newest first. Needs an admin token."""
    with connect() as client:
        pages = client.audit.list(token=token, since=since, page_size=min(limit, 200))
        print_records(
            islice(pages, limit),
            {
                "AT": lambda entry: entry.at,
                "TOKEN": lambda entry: entry.token_id,
                "NAME": lambda entry: entry.token_name,
                "FROM": lambda entry: entry.address,
                "STATUS": lambda entry: entry.status,
                "REQUEST": lambda entry: f"{entry.method} {entry.path}",
            },
        )
