"""The command `dasl open`: the page, with a login."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.inputs import connect
from service.cli.output import note, print_result

app = typer.Typer()


@app.command("open")
def open_in_browser(
    print_only: Annotated[
        bool, typer.Option("--print", help="Only print the address, as for another machine.")
    ] = False,
) -> None:
    """Open the page in a browser, logged in with your token. The printed address works once, for ten minutes."""
    from service.client.page import open_page

    with connect() as client:
        address = client.page_address()
    is_open = not print_only and open_page(address)
    print_result({"address": address, "opened": is_open}, address)
    if not print_only and not is_open:
        note("No browser was found; open the address in one. It works once, for ten minutes.")
