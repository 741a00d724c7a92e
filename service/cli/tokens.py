"""`dasl tokens`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.connection import connect
from service.cli.names import known_by
from service.cli.output import AsJson, note, plain, print_json, print_table, say


def register(app: typer.Typer) -> None:
    """Add the commands."""
    tokens = typer.Typer(no_args_is_help=True, help="Access tokens (need an admin token).")
    tokens.command()(create)
    tokens.command("list")(list_tokens)
    tokens.command()(revoke)
    app.add_typer(tokens, name="tokens")


def create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    scope: Annotated[
        list[str], typer.Option(help="read, submit or admin; may be given several times.")
    ] = ["read", "submit"],  # noqa: B006  typer copies it
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, this once."""
    with connect() as client:
        token = client.tokens.create(name, scope)
    if as_json:
        print_json(plain(token))
        return
    say(token.token or "")
    note(f"{token.id}, scopes {', '.join(token.scopes)}. Keep it: it is not shown again.")


def list_tokens(as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    with connect() as client:
        found = list(client.tokens.list())
    if as_json:
        print_json([plain(token) for token in found])
        return
    print_table(
        ["ID", "NAME", "SCOPES", "CREATED", "REVOKED"],
        [[t.id, t.name, ",".join(t.scopes), t.created_at, t.revoked_at] for t in found],
    )


def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN_ID", callback=known_by)],
    as_json: AsJson = False,
) -> None:
    """Make a token useless from now on."""
    with connect() as client:
        client.tokens.revoke(token)
    if as_json:
        print_json({"revoked": token})
    else:
        say(f"Revoked {token}.")
