"""The commands `dasl users ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.inputs import connect, given, id_argument, text_option, utf8
from service.cli.output import Columns, print_record, print_records, print_result

if TYPE_CHECKING:
    from service.wire.access import UserView

UserId = Annotated[str, id_argument("USER_ID", "Id of the user.")]
_ROLE = "Highest scope of the user's tokens: read, submit, admin or operator."
Email = Annotated[str | None, text_option("Email address.")]

app = typer.Typer(
    name="users", no_args_is_help=True, help="Manage users of the tenant. Needs an admin token."
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=utf8, help="Name of the user.")],
    email: Email = None,
    role: Annotated[str, typer.Option(help=_ROLE)] = "submit",
) -> None:
    """Create a user. Create its tokens with `dasl tokens create NAME --user USER_ID`."""
    with connect() as client:
        _print(client.users.create(name, email=email, role=role))


@app.command("list")
def list_users() -> None:
    """List users, newest first."""
    columns: Columns[UserView] = {
        "ID": lambda user: user.id,
        "NAME": lambda user: user.name,
        "EMAIL": lambda user: user.email,
        "ROLE": lambda user: user.role,
        "LAST LOGIN": lambda user: user.last_login_at,
        "DISABLED": lambda user: user.disabled_at,
    }
    with connect() as client:
        print_records(client.users.list(), columns)


@app.command()
def show(user: UserId) -> None:
    """Show a user."""
    with connect() as client:
        _print(client.users.get(user))


@app.command("set")
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
        _print(client.users.set(user, **changes))


@app.command()
def disable(user: UserId) -> None:
    """Refuse the user's tokens from now on. Its jobs continue."""
    with connect() as client:
        record = client.users.set(user, disabled=True)
    print_result(record, f"User {record.name} is disabled. Its jobs continue.")


@app.command()
def enable(user: UserId) -> None:
    """Accept the tokens of a disabled user again."""
    with connect() as client:
        record = client.users.set(user, disabled=False)
    print_result(record, f"User {record.name} is enabled.")


def _print(user: UserView) -> None:
    facts = [
        ("id", user.id),
        ("name", user.name),
        ("email", user.email),
        ("role", user.role),
        ("subject", user.subject),
        ("issuer", user.issuer),
        ("created", user.created_at),
        ("last login", user.last_login_at),
        ("disabled", user.disabled_at),
    ]
    print_record(user, facts)
