"""The commands `dasl tokens ...`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import connect, id_or_name
from service.cli.output import (
    AsJson,
    note,
    plain,
    print_json,
    print_line,
    print_records,
    print_result,
)

if TYPE_CHECKING:
    from service.client.access import Quotas
    from service.client.models import Token


def _quota(value: str | None) -> str | None:
    """Check the value of a quota option.

    Raises:
        typer.BadParameter: it is neither a whole number nor `none`.
    """
    if value is not None and value != "none" and not re.fullmatch("[0-9]{1,9}", value):
        raise typer.BadParameter(
            f"{value!r} is not a limit; expected a whole number, or none for no limit"
        )
    return value


MaxQueuedJobs = Annotated[
    str | None,
    typer.Option(
        metavar="N|none",
        callback=_quota,
        help="Maximum number of queued jobs; 1000 for a new token by default.",
    ),
]
MaxRunningJobs = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_quota, help="Maximum number of running jobs."),
]
MaxGpus = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_quota, help="Maximum number of GPUs in use."),
]
Scopes = Annotated[list[str], typer.Option(help="Scope: read, submit or admin. Can be repeated.")]
TokenId = Annotated[
    str, typer.Argument(metavar="TOKEN_ID", callback=id_or_name, help="Id of the token.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    tokens = typer.Typer(
        no_args_is_help=True, help="Manage access tokens and quotas. Needs an admin token."
    )
    tokens.command()(create)
    tokens.command("list")(list_tokens)
    tokens.command("set")(set_quotas)
    tokens.command()(revoke)
    app.add_typer(tokens, name="tokens")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    scope: Scopes = ["read", "submit"],  # noqa: B006  typer copies it
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret once."""
    quotas = _quotas(max_queued_jobs, max_running_jobs, max_gpus)
    with connect() as client:
        token = client.tokens.create(name, scope, **quotas)
    if as_json:
        print_json(plain(token))
        return
    print_line(token.token or "")
    note(f"{token.id}, scopes {', '.join(token.scopes)}. Save it: it is not shown again.")


def list_tokens(as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    with connect() as client:
        tokens = list(client.tokens.list())
    print_records(
        tokens,
        {
            "ID": lambda token: token.id,
            "NAME": lambda token: token.name,
            "SCOPES": lambda token: ",".join(token.scopes),
            "LIMITS": _limits,
            "CREATED": lambda token: token.created_at,
            "REVOKED": lambda token: token.revoked_at,
        },
        as_json,
    )


def set_quotas(
    token: TokenId,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    as_json: AsJson = False,
) -> None:
    """Change the quotas of a token."""
    quotas = _quotas(max_queued_jobs, max_running_jobs, max_gpus)
    if not quotas:
        raise typer.BadParameter("expected at least one quota, such as --max-running-jobs 2")
    with connect() as client:
        record = client.tokens.set(token, **quotas)
    limits = _limits(record) or "none"
    print_result(record, f"Limits of token {record.name or record.id}: {limits}.", as_json)


def revoke(token: TokenId, as_json: AsJson = False) -> None:
    """Revoke a token."""
    with connect() as client:
        client.tokens.revoke(token)
    print_result({"revoked": token}, f"Revoked token {token}.", as_json)


def _quotas(queued: str | None, running: str | None, gpus: str | None) -> Quotas:
    """Convert the quota options that were set."""
    quotas: Quotas = {}
    if queued is not None:
        quotas["max_queued_jobs"] = _limit(queued)
    if running is not None:
        quotas["max_running_jobs"] = _limit(running)
    if gpus is not None:
        quotas["max_gpus"] = _limit(gpus)
    return quotas


def _limit(value: str) -> int | None:
    return None if value == "none" else int(value)


def _limits(token: Token) -> str | None:
    """Describe the quotas of a token; None if it has none."""
    limits = [
        f"{limit} {unit}"
        for limit, unit in (
            (token.max_queued_jobs, "queued jobs"),
            (token.max_running_jobs, "running jobs"),
            (token.max_gpus, "GPUs"),
        )
        if limit is not None
    ]
    return ", ".join(limits) or None
