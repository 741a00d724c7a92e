"""Bringing a database to the newest schema: `upgrade(url)`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from service.db.session import in_a_line, make_engine

# Any number that nothing else of this database uses: "DASL".
_ADVISORY_LOCK = 0x4441534C


def upgrade(url: str) -> None:
    """Run the migrations that a database lacks, in one transaction; two at a time take turns.

    Raises:
        ValueError: it does not answer, is none, or a newer version made its tables.
    """
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            _refuse_newer(connection)
            if connection.dialect.name == "postgresql":
                # Whoever migrates already may take long.
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                # SQLite needs none: every transaction that may write begins IMMEDIATE.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
                )
            command.upgrade(configuration(connection), "head")
    except SQLAlchemyError as error:
        shown = engine.url.render_as_string(hide_password=True)
        raise ValueError(
            f"The database {shown} (DASL_DATABASE_URL) cannot be brought up to date: {in_a_line(error)}"
        ) from error
    finally:
        engine.dispose()


def _refuse_newer(connection: Connection) -> None:
    if not inspect(connection).has_table("alembic_version"):
        return
    has = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if has is not None and has not in _revisions():
        raise ValueError(
            f"The database (DASL_DATABASE_URL) has the tables of version {has}, which a newer DASL "
            f"made; this one knows {_revisions()[0]} at most"
        )


def behind(connection: Connection) -> str | None:
    """What is wrong with a database whose tables are older than this version's; `None`: nothing.

    Newer ones are no fault: while a deployment is being replaced, its older processes serve on.
    """
    has = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    known = _revisions()
    if has == known[0] or (has is not None and has not in known):
        return None
    return f"has the tables of version {has}, and this needs {known[0]}"


@cache
def _revisions() -> tuple[str, ...]:
    """All revisions that this version knows, newest first."""
    script = ScriptDirectory.from_config(configuration())
    return tuple(revision.revision for revision in script.walk_revisions())


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file of its own."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
