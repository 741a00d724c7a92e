"""The commands `dasl login`, for a token by the server's login provider, and `dasl open`."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from service.cli import console
from service.cli.formats import plain
from service.cli.inputs import connect

if TYPE_CHECKING:
    from service.wire.access import StartedLogin

app = typer.Typer()


@app.command()
def login(
    paste: Annotated[
        bool,
        typer.Option(
            "--paste",
            help="Paste the address to which the browser was sent at the end, because it runs on another machine.",
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port on 127.0.0.1 for the browser; 0 takes any free one."
        ),
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the stored token of another server.")
    ] = False,
) -> None:
    """Log in with a browser, and store the token in config.toml for the other commands."""
    from service.cli.loopback import Callback
    from service.client.config import config_path, stored_url, write_config

    with connect() as client:
        stored = stored_url()
        if stored not in (None, client.url) and not overwrite:
            raise console.fail(
                f"{config_path()} has the token of {stored}; replace it with: dasl login --overwrite"
            )
        with Callback(port) as callback:
            started = client.login.start(callback.address)
            console.note(f"Open this page and log in:\n\n  {started.authorization_url}\n")
            if paste:
                code = _pasted(started)
            else:
                webbrowser.open(started.authorization_url)
                code = callback.wait(started)
        token = client.login.finish(started, code)
        write_config(config_path(), client.url, token.token, author="dasl login")
    if os.environ.get("DASL_TOKEN"):
        console.note("DASL_TOKEN is set and takes precedence over the stored token; unset it.")
    text = f"Logged in to tenant {token.tenant}, scopes {', '.join(token.scopes)}"
    if token.expires_at is not None:
        text += f" until {token.expires_at.astimezone():%Y-%m-%d %H:%M}"
    console.print_result(plain(token) | {"token": None}, f"{text}.")


def _pasted(started: StartedLogin) -> str:
    """Read the address to which the browser was sent, and return the code in it."""
    console.note("Then paste the address of the page on which you end, which need not load:")
    query = parse_qs(urlsplit(sys.stdin.readline().strip()).query)
    if query.get("state") != [started.state] or len(query.get("code", [])) != 1:
        raise console.fail("This is not the address of this login; start again: dasl login --paste")
    return query["code"][0]


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
    console.print_result({"address": address, "opened": is_open}, address)
    if not print_only and not is_open:
        console.note(
            "No browser was found; open the address in one. It works once, for ten minutes."
        )
