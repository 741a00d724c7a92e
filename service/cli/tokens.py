"""`dasl tokens`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connection import connect
from service.cli.names import known_by
from service.cli.output import AsJson, note, plain, print_json, print_table, say

if TYPE_CHECKING:
    from service.client.models import Token
    from service.client.tokens import Quotas


def _most(value: str | None) -> str | None:
    """The value of a quota, as an option. Raises typer.BadParameter."""
    if value is not None and value != "none" and not re.fullmatch("[0-9]{1,9}", value):
        raise typer.BadParameter(f"{value!r} is not a whole number, nor none for no limit")
    return value


MaxQueuedJobs = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_most, help="Jobs that may be queued at a time."),
]
MaxRunningJobs = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_most, help="Jobs that may run at a time."),
]
MaxGpus = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_most, help="GPUs that its jobs may use at a time."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    tokens = typer.Typer(no_args_is_help=True, help="Access tokens (need an admin token).")
    tokens.command()(create)
    tokens.command("list")(list_tokens)
    tokens.command("set")(set_quotas)
    tokens.command()(revoke)
    app.add_typer(tokens, name="tokens")


def create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    scope: Annotated[
        list[str], typer.Option(help="read, submit or admin; may be given several times.")
    ] = ["read", "submit"],  # noqa: B006  typer copies it
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, this once."""
    quotas = _named(max_queued_jobs, max_running_jobs, max_gpus)
    with connect() as client:
        token = client.tokens.create(name, scope, **quotas)
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
        ["ID", "NAME", "SCOPES", "AT MOST", "CREATED", "REVOKED"],
        [
            [t.id, t.name, ",".join(t.scopes), _at_most(t), t.created_at, t.revoked_at]
            for t in found
        ],
    )


def set_quotas(
    token: Annotated[str, typer.Argument(metavar="TOKEN_ID", callback=known_by)],
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    as_json: AsJson = False,
) -> None:
    """Change what the jobs of a token may take at a time."""
    quotas = _named(max_queued_jobs, max_running_jobs, max_gpus)
    if not quotas:
        raise typer.BadParameter("name a quota, such as --max-running-jobs 2")
    with connect() as client:
        changed = client.tokens.set(token, **quotas)
    if as_json:
        print_json(plain(changed))
    else:
        say(f"{changed.name or changed.id} may have at most: {_at_most(changed) or 'no limit'}.")


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


def _named(queued: str | None, running: str | None, gpus: str | None) -> Quotas:
    """The quotas that options name."""
    quotas: Quotas = {}
    if queued is not None:
        quotas["max_queued_jobs"] = _number(queued)
    if running is not None:
        quotas["max_running_jobs"] = _number(running)
    if gpus is not None:
        quotas["max_gpus"] = _number(gpus)
    return quotas


def _number(value: str) -> int | None:
    return None if value == "none" else int(value)


def _at_most(token: Token) -> str | None:
    """The quotas of a token that are limits; `None`: there are none."""
    limits = [
        f"{limit} {what}"
        for limit, what in (
            (token.max_queued_jobs, "queued"),
            (token.max_running_jobs, "running"),
            (token.max_gpus, "GPUs"),
        )
        if limit is not None
    ]
    return ", ".join(limits) or None
