"""`dasl audit`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from service.cli.connection import connect
from service.cli.names import known_by, printable
from service.cli.output import AsJson, plain, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN_ID", callback=lambda value: value and known_by(value)),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Date, or date and time, in UTC.",
            callback=lambda value: value and printable(value),
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show who changed what, newest first (needs an admin token)."""
    with connect() as client:
        entries = client.audit.list(token=token, since=since, page_size=min(limit, 200))
        found = list(islice(entries, limit))
    if as_json:
        print_json([plain(entry) for entry in found])
        return
    print_table(
        ["AT", "TOKEN", "NAME", "FROM", "STATUS", "REQUEST"],
        [
            [e.at, e.token_id, e.token_name, e.address, e.status, f"{e.method} {e.path}"]
            for e in found
        ],
    )
