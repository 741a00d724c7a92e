"""The commands `dasl tokens ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import connect, id_argument
from service.cli.limits import (
    ExpiresInDays,
    MaxGpus,
    MaxPendingDatasets,
    MaxQueuedJobs,
    MaxRunningJobs,
    limits,
)
from service.cli.output import Columns, print_records, print_result, print_secret

if TYPE_CHECKING:
    from service.wire.access import TokenView

Scopes = Annotated[
    list[str], typer.Option(help="Scope: read, submit, admin or operator. Can be repeated.")
]
TokenId = Annotated[str, id_argument("TOKEN_ID", "Id of the token.")]
_LIMITS = (
    "max_queued_jobs",
    "max_running_jobs",
    "max_gpus",
    "max_pending_datasets",
    "expires_in_days",
)

app = typer.Typer(
    name="tokens",
    no_args_is_help=True,
    help="Manage access tokens and quotas. Needs an admin token.",
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    scope: Scopes = ["read", "submit"],  # noqa: B006  typer copies it
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_pending_datasets: MaxPendingDatasets = None,
    expires_in_days: ExpiresInDays = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="USER_ID|none",
            help="User to whom the token belongs; by default the user of your own token.",
        ),
    ] = None,
) -> None:
    """Create a token and print its secret once.

    By default it may have 1000 queued jobs and 100 data sets whose images are not all read. It expires
    when your own token does; an operator's tokens do not expire.
    """
    values = (max_queued_jobs, max_running_jobs, max_gpus, max_pending_datasets, expires_in_days)
    changes = limits(_LIMITS, values)
    if user is not None:
        changes["user_id"] = None if user == "none" else user
    with connect() as client:
        token = client.tokens.create(name, scope, **changes)
    scopes = ", ".join(token.scopes)
    remark = f"{token.id}, scopes {scopes}.{_expiry(token)} Save it: it is not shown again."
    print_secret(token, token.token, remark)


@app.command("list")
def list_tokens() -> None:
    """List all tokens, without their secrets."""
    columns: Columns[TokenView] = {
        "ID": lambda token: token.id,
        "NAME": lambda token: token.name,
        "USER": lambda token: token.user_id,
        "SCOPES": lambda token: ",".join(token.scopes),
        "LIMITS": _limits,
        "CREATED": lambda token: token.created_at,
        "LAST USED": lambda token: token.last_used_at,
        "EXPIRES": lambda token: token.expires_at,
        "REVOKED": lambda token: token.revoked_at,
    }
    with connect() as client:
        print_records(client.tokens.list(), columns)


@app.command("set")
def set_quotas(
    token: TokenId,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_pending_datasets: MaxPendingDatasets = None,
    expires_in_days: ExpiresInDays = None,
) -> None:
    """Change the quotas and the expiry of a token."""
    values = (max_queued_jobs, max_running_jobs, max_gpus, max_pending_datasets, expires_in_days)
    changes = limits(_LIMITS, values)
    if not changes:
        raise typer.BadParameter("expected at least one quota, such as --max-running-jobs 2")
    with connect() as client:
        record = client.tokens.set(token, **changes)
    text = f"Limits of token {record.name or record.id}: {_limits(record) or 'none'}."
    print_result(record, text + _expiry(record))


@app.command()
def revoke(token: TokenId) -> None:
    """Revoke a token."""
    with connect() as client:
        client.tokens.revoke(token)
    print_result({"revoked": token}, f"Revoked token {token}.")


def _expiry(token: TokenView) -> str:
    """Say when a token expires; empty if it does not."""
    if token.expires_at is None:
        return ""
    return f" It expires on {token.expires_at.astimezone():%Y-%m-%d at %H:%M}."


def _limits(token: TokenView) -> str | None:
    """Describe the quotas of a token; None if it has none."""
    limits = [
        f"{limit} {unit}"
        for limit, unit in (
            (token.max_queued_jobs, "queued jobs"),
            (token.max_running_jobs, "running jobs"),
            (token.max_gpus, "GPUs"),
            (token.max_pending_datasets, "pending data sets"),
        )
        if limit is not None
    ]
    return ", ".join(limits) or None
