"""Bringing a database to the newest schema: `upgrade(url)`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from service.db.session import make_engine

# Any number that nothing else of this database uses: "DASL".
_ADVISORY_LOCK = 0x4441534C


def upgrade(url: str) -> None:
    """Run the migrations that a database lacks, in one transaction; two at a time take turns."""
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # SQLite needs none: every transaction that may write begins IMMEDIATE.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
                )
            command.upgrade(configuration(connection), "head")
    finally:
        engine.dispose()


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file of its own."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
