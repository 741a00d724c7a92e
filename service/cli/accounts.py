"""The commands `dasl tenants ...`, `dasl users ...` and `dasl tokens ...`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import console
from service.cli.inputs import connect, given, id_argument, tenant_name, text_option, utf8

if TYPE_CHECKING:
    from service.wire.access import TenantView, TokenView, UserView

tenants = typer.Typer(
    name="tenants",
    no_args_is_help=True,
    help="Manage tenants: their share of the cluster and their limits. Needs an operator's token.",
)
users = typer.Typer(
    name="users", no_args_is_help=True, help="Manage users of the tenant. Needs an admin token."
)
tokens = typer.Typer(
    name="tokens",
    no_args_is_help=True,
    help="Manage access tokens and quotas. Needs an admin token.",
)


def _option(
    help: str,
    metavar: str = "N|none",
    is_valid: Callable[[str], object] = re.compile("[0-9]{1,9}").fullmatch,
    expected: str = "a whole number",
) -> Any:
    def check(value: str | None) -> str | None:
        if value is not None and value != "none" and not is_valid(value):
            raise typer.BadParameter(
                f"{value!r} is not a limit; expected {expected}, or none for no limit"
            )
        return value

    return typer.Option(metavar=metavar, callback=check, help=help)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


MaxQueuedJobs = Annotated[str | None, _option("Maximum number of queued jobs.")]
MaxRunningJobs = Annotated[str | None, _option("Maximum number of running jobs.")]
MaxGpus = Annotated[str | None, _option("Maximum number of GPUs in use.")]
MaxPendingDatasets = Annotated[
    str | None, _option("Maximum number of data sets whose images are not all read.")
]
MaxUploadedBytes = Annotated[str | None, _option("Maximum number of bytes of uploaded data sets.")]
MaxPriority = Annotated[
    str | None, _option("Highest priority of a job.", is_valid=re.compile("-?[0-9]{1,9}").fullmatch)
]
MaxHours = Annotated[
    str | None, _option("Highest time limit of a job, in hours.", "H|none", _is_number, "a number")
]
ExpiresInDays = Annotated[
    str | None,
    _option("Days from now after which the token is refused.", "DAYS|none", _is_number, "a number"),
]
Weight = Annotated[
    float | None,
    typer.Option(help="Share of the cluster, relative to that of other tenants.", min=0),
]
TenantName = Annotated[
    str, typer.Argument(metavar="TENANT", callback=tenant_name, help="Name of the tenant.")
]


def _limits(names: Sequence[str], values: Sequence[str | None]) -> dict[str, Any]:
    """Convert the checked values of the options that were set: `none`, no limit, is None."""
    options = zip(names, values, strict=True)
    return {name: _limit(value) for name, value in options if value is not None}


def _limit(value: str) -> float | None:
    if value == "none":
        return None
    return int(value) if re.fullmatch("-?[0-9]+", value) else float(value)


_LIMITS = (
    "max_queued_jobs",
    "max_running_jobs",
    "max_gpus",
    "max_priority",
    "max_hours",
    "max_uploaded_bytes",
)


@tenants.command("create")
def create_tenant(
    name: TenantName,
    weight: Weight = None,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_priority: MaxPriority = None,
    max_hours: MaxHours = None,
    max_uploaded_bytes: MaxUploadedBytes = None,
) -> None:
    """Create a tenant. For its first token, set DASL_TENANT and run `dasl tokens create`."""
    changes = _changes(
        weight,
        max_queued_jobs,
        max_running_jobs,
        max_gpus,
        max_priority,
        max_hours,
        max_uploaded_bytes,
    )
    with connect() as client:
        _print_tenant(client.tenants.create(name, **changes))


@tenants.command("list")
def list_tenants() -> None:
    """List tenants: all for an operator, else your own."""
    shown: console.Columns[TenantView] = {
        **console.columns("name"),
        "WEIGHT": lambda tenant: f"{tenant.weight:g}",
        **console.columns(QUEUED="max_queued_jobs", RUNNING="max_running_jobs", GPUS="max_gpus"),
        **console.columns(PRIORITY="max_priority", HOURS="max_hours", DISABLED="disabled_at"),
    }
    with connect() as client:
        console.print_records(client.tenants.list(), shown)


@tenants.command("show")
def show_tenant(name: TenantName) -> None:
    """Show a tenant."""
    with connect() as client:
        _print_tenant(client.tenants.get(name))


@tenants.command("set")
def set_limits(
    name: TenantName,
    weight: Weight = None,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_priority: MaxPriority = None,
    max_hours: MaxHours = None,
    max_uploaded_bytes: MaxUploadedBytes = None,
) -> None:
    """Change weight and limits of a tenant."""
    changes = _changes(
        weight,
        max_queued_jobs,
        max_running_jobs,
        max_gpus,
        max_priority,
        max_hours,
        max_uploaded_bytes,
    )
    if not changes:
        raise typer.BadParameter("expected at least one limit, such as --max-gpus 8")
    with connect() as client:
        _print_tenant(client.tenants.set(name, **changes))


@tenants.command("disable")
def disable_tenant(name: TenantName) -> None:
    """Refuse the tokens of a tenant from now on. Its jobs continue."""
    with connect() as client:
        tenant = client.tenants.disable(name)
    console.print_result(tenant, f"Tenant {name} is disabled. Its jobs continue.")


@tenants.command("enable")
def enable_tenant(name: TenantName) -> None:
    """Accept the tokens of a disabled tenant again."""
    with connect() as client:
        tenant = client.tenants.enable(name)
    console.print_result(tenant, f"Tenant {name} is enabled.")


@tenants.command("rm")
def rm_tenant(name: TenantName) -> None:
    """Delete an empty tenant."""
    with connect() as client:
        client.tenants.delete(name)
    console.print_result({"deleted": name}, f"Deleted tenant {name}.")


def _changes(weight: float | None, *values: str | None) -> dict[str, Any]:
    """Return the options that were set: the weight, and the limits in the order of `_LIMITS`."""
    return given(weight=weight) | _limits(_LIMITS, values)


def _print_tenant(tenant: TenantView) -> None:
    limits = [
        ("queued jobs", tenant.max_queued_jobs),
        ("running jobs", tenant.max_running_jobs),
        ("GPUs", tenant.max_gpus),
        ("priority", tenant.max_priority),
        ("hours", tenant.max_hours),
        ("uploaded bytes", tenant.max_uploaded_bytes),
    ]
    share = [("name", tenant.name), ("weight", f"{tenant.weight:g}")]
    described = [
        (name, "no limit" if limit is None else f"at most {limit:g}") for name, limit in limits
    ]
    console.print_record(
        tenant, [*share, *described, *console.facts(tenant, "created_at", "disabled_at")]
    )


UserId = Annotated[str, id_argument("USER_ID", "Id of the user.")]
_ROLE = "Highest scope of the user's tokens: read, submit, admin or operator."
Email = Annotated[str | None, text_option("Email address.")]


@users.command("create")
def create_user(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=utf8, help="Name of the user.")],
    email: Email = None,
    role: Annotated[str, typer.Option(help=_ROLE)] = "submit",
) -> None:
    """Create a user. Create its tokens with `dasl tokens create NAME --user USER_ID`."""
    with connect() as client:
        _print_user(client.users.create(name, email=email, role=role))


@users.command("list")
def list_users() -> None:
    """List users, newest first."""
    shown = console.columns("id", "name", "email", "role", "last_login_at", "disabled_at")
    with connect() as client:
        console.print_records(client.users.list(), shown)


@users.command("show")
def show_user(user: UserId) -> None:
    """Show a user."""
    with connect() as client:
        _print_user(client.users.get(user))


@users.command("set")
def set_user(
    user: UserId,
    name: Annotated[str | None, text_option("Name of the user.")] = None,
    email: Email = None,
    role: Annotated[str | None, typer.Option(help=_ROLE)] = None,
) -> None:
    """Change a user. A lower role limits its tokens at once."""
    changes = given(name=name, email=email, role=role)
    if not changes:
        raise typer.BadParameter("expected at least one change, such as --role admin")
    with connect() as client:
        _print_user(client.users.set(user, **changes))


@users.command("disable")
def disable_user(user: UserId) -> None:
    """Refuse the user's tokens from now on. Its jobs continue."""
    with connect() as client:
        record = client.users.set(user, disabled=True)
    console.print_result(record, f"User {record.name} is disabled. Its jobs continue.")


@users.command("enable")
def enable_user(user: UserId) -> None:
    """Accept the tokens of a disabled user again."""
    with connect() as client:
        record = client.users.set(user, disabled=False)
    console.print_result(record, f"User {record.name} is enabled.")


def _print_user(user: UserView) -> None:
    identity = console.facts(user, "id", "name", "email", "role", "subject", "issuer")
    console.print_record(
        user, [*identity, *console.facts(user, "created_at", "last_login_at", "disabled_at")]
    )


Scopes = Annotated[
    list[str], typer.Option(help="Scope: read, submit, admin or operator. Can be repeated.")
]
TokenId = Annotated[str, id_argument("TOKEN_ID", "Id of the token.")]
_QUOTAS = (
    "max_queued_jobs",
    "max_running_jobs",
    "max_gpus",
    "max_pending_datasets",
    "max_uploaded_bytes",
    "expires_in_days",
)


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    scope: Scopes = ["read", "submit"],  # noqa: B006  typer copies it
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_pending_datasets: MaxPendingDatasets = None,
    max_uploaded_bytes: MaxUploadedBytes = None,
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
    quotas = (max_queued_jobs, max_running_jobs, max_gpus, max_pending_datasets, max_uploaded_bytes)
    changes = _limits(_QUOTAS, (*quotas, expires_in_days))
    if user is not None:
        changes["user_id"] = None if user == "none" else user
    with connect() as client:
        token = client.tokens.create(name, scope, **changes)
    scopes = ", ".join(token.scopes)
    remark = f"{token.id}, scopes {scopes}.{_expiry(token)} Save it: it is not shown again."
    console.print_secret(token, token.token, remark)


@tokens.command("list")
def list_tokens() -> None:
    """List all tokens, without their secrets."""
    shown: console.Columns[TokenView] = {
        **console.columns("id", "name", USER="user_id"),
        "SCOPES": lambda token: ",".join(token.scopes),
        "LIMITS": _described,
        **console.columns("created_at", "last_used_at", "expires_at", "revoked_at"),
    }
    with connect() as client:
        console.print_records(client.tokens.list(), shown)


@tokens.command("set")
def set_quotas(
    token: TokenId,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_pending_datasets: MaxPendingDatasets = None,
    max_uploaded_bytes: MaxUploadedBytes = None,
    expires_in_days: ExpiresInDays = None,
) -> None:
    """Change the quotas and the expiry of a token."""
    quotas = (max_queued_jobs, max_running_jobs, max_gpus, max_pending_datasets, max_uploaded_bytes)
    changes = _limits(_QUOTAS, (*quotas, expires_in_days))
    if not changes:
        raise typer.BadParameter("expected at least one quota, such as --max-running-jobs 2")
    with connect() as client:
        record = client.tokens.set(token, **changes)
    text = f"Limits of token {record.name or record.id}: {_described(record) or 'none'}."
    console.print_result(record, text + _expiry(record))


@tokens.command()
def revoke(token: TokenId) -> None:
    """Revoke a token."""
    with connect() as client:
        client.tokens.revoke(token)
    console.print_result({"revoked": token}, f"Revoked token {token}.")


def _expiry(token: TokenView) -> str:
    """Say when a token expires; empty if it does not."""
    if token.expires_at is None:
        return ""
    return f" It expires on {token.expires_at.astimezone():%Y-%m-%d at %H:%M}."


def _described(token: TokenView) -> str | None:
    """Describe the quotas of a token; None if it has none."""
    quotas = {
        "queued jobs": token.max_queued_jobs,
        "running jobs": token.max_running_jobs,
        "GPUs": token.max_gpus,
        "pending data sets": token.max_pending_datasets,
        "uploaded bytes": token.max_uploaded_bytes,
    }
    return ", ".join(f"{n} {unit}" for unit, n in quotas.items() if n is not None) or None
