"""Commands of whoever runs a server, and the schema of a spec."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from service.cli.names import printable
from service.cli.output import AsJson, fail, note, print_json, say


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(serve)
    app.command()(schema)
    database = typer.Typer(no_args_is_help=True, help="The service's database.")
    database.command()(upgrade)
    database.command("admin-token")(admin_token)
    app.add_typer(database, name="db")


def serve() -> None:
    """Start API, dispatcher and a local Ray on this machine; Ctrl-C stops all of it."""
    try:
        from service.embedded.serve import main
    except ModuleNotFoundError as error:
        _missing(error)
    raise typer.Exit(main())


def upgrade(as_json: AsJson = False) -> None:
    """Bring the database of DASL_DATABASE_URL to this version's tables."""
    try:
        from sqlalchemy import make_url

        from service.db.migrate import upgrade as upgrade_database
        from service.settings import read_settings
    except ModuleNotFoundError as error:
        _missing(error)
    try:
        url = read_settings().database_url
        upgrade_database(url)
    except ValueError as error:
        raise fail(str(error)) from error
    shown = make_url(url).render_as_string(hide_password=True)
    if as_json:
        print_json({"database": shown, "upgraded": True})
    else:
        say(f"{shown} has the tables of this version.")


def admin_token(
    name: Annotated[str, typer.Argument(callback=printable, help="What the token is for.")],
    tenant: Annotated[
        str,
        typer.Option(
            callback=printable, help="Whose jobs and data sets it sees; a new one begins."
        ),
    ] = "default",
    as_json: AsJson = False,
) -> None:
    """Make an admin token in the database of DASL_DATABASE_URL, and print it, this once.

    This is how a deployment gets its first one. It needs no token: who may write to the database may
    do everything.
    """
    try:
        from pydantic import TypeAdapter, ValidationError
        from sqlalchemy.exc import SQLAlchemyError

        from dasl_core.spec import field_problems
        from service.db.session import Database, in_a_line
        from service.embedded.bootstrap_token import new_admin_token
        from service.settings import read_settings
        from service.tokens.schemas import TenantName, TokenName
    except ModuleNotFoundError as error:
        _missing(error)
    for kind, given in ((TokenName, name), (TenantName, tenant)):
        try:
            TypeAdapter(kind).validate_python(given)
        except ValidationError as error:
            (problem,) = field_problems(error)
            raise typer.BadParameter(f"{given!r}: expected {problem.expected}") from None
    try:
        token = new_admin_token(Database(read_settings().database_url), name, tenant)
    except (ValueError, SQLAlchemyError) as error:
        raise fail(f"{in_a_line(error)}. `dasl db upgrade` makes the tables") from error
    if as_json:
        print_json({"name": name, "tenant": tenant, "scopes": ["admin"], "token": token})
    else:
        say(token)
        note("Keep it: it is not shown again. `dasl tokens` makes others, and revokes them.")


def schema() -> None:
    """Print the JSON Schema of a spec, for editors and generators."""
    from dasl_core.spec import JobSpec

    print_json(JobSpec.model_json_schema())


def _missing(error: ModuleNotFoundError) -> NoReturn:
    # A module of our own that is missing is a bug, and must look like one.
    if (error.name or "").partition(".")[0] in {"dasl_core", "service", "workers"}:
        raise error
    raise fail(
        f'This needs the server extra ({error.name} is missing): pip install "dasl[server,training]"'
    ) from error
