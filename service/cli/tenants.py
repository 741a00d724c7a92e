"""The commands `dasl tenants ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.inputs import connect, given, tenant_name
from service.cli.limits import MaxGpus, MaxHours, MaxPriority, MaxQueuedJobs, MaxRunningJobs, limits
from service.cli.output import Columns, print_record, print_records, print_result

if TYPE_CHECKING:
    from service.wire.access import TenantView

_LIMITS = ("max_queued_jobs", "max_running_jobs", "max_gpus", "max_priority", "max_hours")
Weight = Annotated[
    float | None,
    typer.Option(help="Share of the cluster, relative to that of other tenants.", min=0),
]
Name = Annotated[
    str, typer.Argument(metavar="TENANT", callback=tenant_name, help="Name of the tenant.")
]

app = typer.Typer(
    name="tenants",
    no_args_is_help=True,
    help="Manage tenants: their share of the cluster and their limits. Needs an operator's token.",
)


@app.command()
def create(
    name: Name,
    weight: Weight = None,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_priority: MaxPriority = None,
    max_hours: MaxHours = None,
) -> None:
    """Create a tenant. For its first token, set DASL_TENANT and run `dasl tokens create`."""
    changes = _changes(weight, max_queued_jobs, max_running_jobs, max_gpus, max_priority, max_hours)
    with connect() as client:
        _print(client.tenants.create(name, **changes))


@app.command("list")
def list_tenants() -> None:
    """List tenants: all for an operator, else your own."""
    columns: Columns[TenantView] = {
        "NAME": lambda tenant: tenant.name,
        "WEIGHT": lambda tenant: f"{tenant.weight:g}",
        "QUEUED": lambda tenant: tenant.max_queued_jobs,
        "RUNNING": lambda tenant: tenant.max_running_jobs,
        "GPUS": lambda tenant: tenant.max_gpus,
        "PRIORITY": lambda tenant: tenant.max_priority,
        "HOURS": lambda tenant: tenant.max_hours,
        "DISABLED": lambda tenant: tenant.disabled_at,
    }
    with connect() as client:
        print_records(client.tenants.list(), columns)


@app.command()
def show(name: Name) -> None:
    """Show a tenant."""
    with connect() as client:
        _print(client.tenants.get(name))


@app.command("set")
def set_limits(
    name: Name,
    weight: Weight = None,
    max_queued_jobs: MaxQueuedJobs = None,
    max_running_jobs: MaxRunningJobs = None,
    max_gpus: MaxGpus = None,
    max_priority: MaxPriority = None,
    max_hours: MaxHours = None,
) -> None:
    """Change weight and limits of a tenant."""
    changes = _changes(weight, max_queued_jobs, max_running_jobs, max_gpus, max_priority, max_hours)
    if not changes:
        raise typer.BadParameter("expected at least one limit, such as --max-gpus 8")
    with connect() as client:
        _print(client.tenants.set(name, **changes))


@app.command()
def disable(name: Name) -> None:
    """Refuse the tokens of a tenant from now on. Its jobs continue."""
    with connect() as client:
        tenant = client.tenants.disable(name)
    print_result(tenant, f"Tenant {name} is disabled. Its jobs continue.")


@app.command()
def enable(name: Name) -> None:
    """Accept the tokens of a disabled tenant again."""
    with connect() as client:
        tenant = client.tenants.enable(name)
    print_result(tenant, f"Tenant {name} is enabled.")


@app.command()
def rm(name: Name) -> None:
    """Delete an empty tenant."""
    with connect() as client:
        client.tenants.delete(name)
    print_result({"deleted": name}, f"Deleted tenant {name}.")


def _changes(weight: float | None, *values: str | None) -> dict[str, Any]:
    """Return the options that were set: the weight, and the limits in the order of `_LIMITS`."""
    return given(weight=weight) | limits(_LIMITS, values)


def _print(tenant: TenantView) -> None:
    facts = [
        ("name", tenant.name),
        ("weight", f"{tenant.weight:g}"),
        ("queued jobs", _limit(tenant.max_queued_jobs)),
        ("running jobs", _limit(tenant.max_running_jobs)),
        ("GPUs", _limit(tenant.max_gpus)),
        ("priority", _limit(tenant.max_priority)),
        ("hours", _limit(tenant.max_hours)),
        ("created", tenant.created_at),
        ("disabled", tenant.disabled_at),
    ]
    print_record(tenant, facts)


def _limit(value: float | None) -> str:
    return "no limit" if value is None else f"at most {value:g}"
