"""Temporary databases for tests, in memory where possible."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from service.db import migrate

# On a disk the tests' hundreds of databases take minutes: a PostgreSQL database has 300 files, and SQLite
# waits for the disk after each transaction.
IN_MEMORY = Path("/dev/shm")
ROOM_FOR_DATABASES = 2**30


def database_folder(kind: str) -> Path:
    """Create a temporary folder, in memory if there is enough room."""
    # Directly below the temporary folder: when run by root, PostgreSQL makes every parent of its data
    # folder accessible to another user.
    roomy = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= ROOM_FOR_DATABASES
    return Path(tempfile.mkdtemp(prefix=f"dasl-{kind}-", dir=IN_MEMORY if roomy else None))


class Postgres:
    """A PostgreSQL server; each call creates a migrated database and returns its URL."""

    def __init__(self, address: URL) -> None:
        self._address = address
        self._admin = create_engine(address, isolation_level="AUTOCOMMIT")
        # Durability is not needed: the databases are temporary.
        self._run("ALTER SYSTEM SET fsync = off")
        self._run("ALTER SYSTEM SET max_wal_size = '64MB'")
        self._run("SELECT pg_reload_conf()")
        self._run("CREATE DATABASE template_dasl")
        migrate.upgrade(self._url("template_dasl"))

    def __call__(self, name: str | None = None) -> str:
        name = name or f"test_{uuid.uuid4().hex}"
        self._run(f"CREATE DATABASE {name} TEMPLATE template_dasl")
        return self._url(name)

    def drop(self, url: str) -> None:
        """Remove a database even if clients are connected to it."""
        self._run(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def close(self) -> None:
        """Disconnect."""
        self._admin.dispose()

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))

    def _url(self, name: str) -> str:
        return self._address.set(database=name).render_as_string(hide_password=False)
