"""Schema migrations with Alembic."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from service.db.backup import backup_before_upgrade
from service.db.session import first_line, is_damaged, make_engine

# An arbitrary number that nothing else in this database uses: "DASL" in ASCII.
_ADVISORY_LOCK = 0x4441534C


def upgrade(url: str) -> None:
    """Upgrade a database to the newest schema, in one transaction; concurrent calls take turns.

    SQLite's file is first copied (`backup_before_upgrade`).

    Raises:
        ValueError: the database is unreachable or invalid, another version created its tables, or it cannot be
            copied.
    """
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            has_tables = inspect(connection).has_table("alembic_version")
            revision = _current_revision(connection) if has_tables else None
            if revision is not None:
                check_supported(revision, "The database (DASL_DATABASE_URL)")
                if revision != head() and connection.dialect.name == "sqlite":
                    backup_before_upgrade(engine.url, revision)
            if connection.dialect.name == "postgresql":
                # A migration that is already running may take long.
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                # SQLite needs no lock: every writing transaction begins IMMEDIATE.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
                )
            command.upgrade(configuration(connection), "head")
    except SQLAlchemyError as error:
        masked = engine.url.render_as_string(hide_password=True)
        if is_damaged(error):
            raise ValueError(
                f"The database {masked} (DASL_DATABASE_URL) is damaged: {first_line(error)}. Restore a backup with "
                "dasl db restore"
            ) from error
        raise ValueError(
            f"The database {masked} (DASL_DATABASE_URL) cannot be brought up to date: {first_line(error)}"
        ) from error
    finally:
        engine.dispose()


def is_empty(url: str) -> bool:
    """Whether a database has no tables of DASL; false if it cannot be reached, which `upgrade` reports."""
    parsed = make_url(url)
    if parsed.drivername.startswith("sqlite") and not Path(str(parsed.database)).exists():
        return True  # connecting would create the file
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            return not inspect(connection).has_table("alembic_version")
    except SQLAlchemyError:
        return False
    finally:
        engine.dispose()


def check_supported(revision: str | None, database: str) -> None:
    """Check that this version supports the tables of a database or backup.

    Args:
        database: name of the database in the error.

    Raises:
        ValueError: another version created them, or they are not DASL's.
    """
    if revision is None:
        raise ValueError(f"{database} has no tables of DASL")
    if revision not in _revisions():
        raise ValueError(
            f"{database} has the tables of version {revision}, which this DASL does not know; it knows "
            f"{head()} at most. Install the DASL that made them, or restore a backup from before its upgrade: "
            "dasl db restore FILE"
        )


def _current_revision(connection: Connection) -> str | None:
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if revision is None else str(revision)


def behind(connection: Connection) -> str | None:
    """Return the problem if the tables are older than this version needs, otherwise `None`.

    Newer tables are accepted: during a rolling update, older processes keep serving.
    """
    revision = _current_revision(connection)
    known = _revisions()
    if revision == known[0] or (revision is not None and revision not in known):
        return None
    return f"has the tables of version {revision}, and this needs {known[0]}"


def head() -> str:
    """Return the revision of this version's tables."""
    return _revisions()[0]


@cache
def _revisions() -> tuple[str, ...]:
    """Return all revisions of this version, newest first."""
    script = ScriptDirectory.from_config(configuration())
    return tuple(revision.revision for revision in script.walk_revisions())


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration, built in code instead of read from a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
