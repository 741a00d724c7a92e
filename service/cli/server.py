"""Commands for operators of a server, and `dasl schema`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli import console
from service.cli.inputs import utf8

app = typer.Typer()
database = typer.Typer(name="db", no_args_is_help=True, help="Manage the service's database.")


@app.command()
def serve(
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser, logged in.")
    ] = False,
) -> None:
    """Start the API, the dispatcher and a local Ray. Ctrl-C stops all three."""
    with console.server_extra():
        from service.embedded.serve import main
    raise typer.Exit(main(open_page=open_page))


@database.command()
def upgrade() -> None:
    """Create or upgrade the database's tables. DASL_DATABASE_URL names the database."""
    with console.server_extra():
        from sqlalchemy import make_url

        from service.db.migrate import upgrade as upgrade_database
        from service.settings import read_settings
    try:
        url = read_settings().database_url
        upgrade_database(url)
    except ValueError as error:
        raise console.fail(str(error)) from error
    database = make_url(url).render_as_string(hide_password=True)
    text = f"{database} has the tables of this version."
    console.print_result({"database": database, "upgraded": True}, text)


BackupFile = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False)]


@database.command()
def backup(file: BackupFile) -> None:
    """Copy the database of DASL_DATABASE_URL to a new FILE, also while the service is running.

    PostgreSQL needs pg_dump. To back up checkpoints and logs too, copy the artifacts after this.
    """
    with console.server_extra():
        from service.db.backup import backup as write_backup
        from service.settings import read_settings
    try:
        write_backup(read_settings().database_url, file)
    except ValueError as error:
        raise console.fail(str(error)) from error
    size = file.stat().st_size
    text = f"{file} is a backup of the database ({size / 1e6:.1f} MB)."
    console.print_result({"file": str(file), "size": size}, text)


@database.command()
def restore(file: BackupFile) -> None:
    """Replace the database of DASL_DATABASE_URL by a backup. Stop the service first.

    The replaced SQLite database is kept beside the new one. PostgreSQL needs pg_restore and an empty database.
    """
    with console.server_extra():
        from sqlalchemy.exc import SQLAlchemyError

        from service.artifacts.storage import mask
        from service.db.restore import restore as restore_backup
        from service.db.session import Database
        from service.settings import read_settings
        from service.storage.repository import other_root
    try:
        settings = read_settings()
        replaced = restore_backup(settings.database_url, file)
        root = settings.artifacts_uri
        database = Database(settings.database_url)
        try:
            with database.read() as session:
                other = other_root(session, root)
        except SQLAlchemyError:  # the tables of an older version
            other = None
        finally:
            database.dispose()
    except ValueError as error:
        raise console.fail(str(error)) from error
    if other is not None:
        problem = f"DASL_ARTIFACTS_URI: it is {mask(root)}, and the backup names files below {mask(other)}"
        console.note(f"{problem}. Set it to that root, and copy the artifacts there")
    remark = "" if replaced is None else f" The replaced database is kept as {replaced}."
    text = f"{file} is restored.{remark} `dasl serve` or `dasl db upgrade` upgrades its tables if needed."
    answer = {"restored": str(file), "replaced": None if replaced is None else str(replaced)}
    console.print_result(answer, text)


@database.command()
def orphans() -> None:
    """List folders in the artifact store that the database does not name.

    After an older backup was restored, they are those of what is newer. Nothing else ever removes them.
    """
    with console.server_extra():
        from sqlalchemy.exc import SQLAlchemyError

        from service.artifacts.storage import Storage
        from service.db.session import Database, first_line
        from service.object_store import StoreError
        from service.settings import read_settings
        from service.storage.orphans import find_orphans
    try:
        settings = read_settings()
        found = list(find_orphans(Database(settings.database_url), Storage(settings.artifacts_uri)))
    except (ValueError, SQLAlchemyError, StoreError) as error:
        raise console.fail(first_line(error)) from error
    text = "\n".join(found) or "Every folder in the artifact store is named by the database."
    console.print_result({"orphans": found}, text)


@database.command("admin-token")
def admin_token(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=utf8, help="Name of the token.")],
    tenant: Annotated[
        str,
        typer.Option(
            callback=utf8,
            help="Tenant whose jobs and data sets the token sees. Created if it does not exist.",
        ),
    ] = "default",
    operator: Annotated[
        bool,
        typer.Option("--operator", help="Create an operator's token, which manages all tenants."),
    ] = False,
) -> None:
    """Create an admin token and print it once. It is stored in the database of DASL_DATABASE_URL.

    A new deployment gets its first token this way. No token is needed, because write access to the database
    already allows everything.
    """
    with console.server_extra():
        from pydantic import TypeAdapter, ValidationError
        from sqlalchemy.exc import SQLAlchemyError

        from dasl_core.spec import field_problems
        from service.db.session import Database, first_line
        from service.embedded.bootstrap_token import new_admin_token
        from service.settings import read_settings
        from service.tenants.schemas import TenantName
        from service.tokens.schemas import TokenName
    for kind, value in ((TokenName, name), (TenantName, tenant)):
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            (problem,) = field_problems(error)
            raise typer.BadParameter(f"{value!r}: expected {problem.expected}") from None
    try:
        scope: Literal["admin", "operator"] = "operator" if operator else "admin"
        token = new_admin_token(Database(read_settings().database_url), name, tenant, scope=scope)
    except (ValueError, SQLAlchemyError) as error:
        raise console.fail(
            f"{first_line(error)}. Create the tables with: dasl db upgrade"
        ) from error
    answer = {"name": name, "tenant": tenant, "scopes": [scope], "token": token}
    remark = "Save it: it is not shown again. Manage tokens with: dasl tokens"
    console.print_secret(answer, token, remark)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec. Editors and code generators can use it."""
    from dasl_core.spec import JobSpec

    console.print_json(JobSpec.model_json_schema())
