"""Fixtures: databases of both kinds, and an API on each kind."""

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import QueuePool

from service.db import migrate
from service.db.session import Database
from service.dispatcher.adoption import Adoption
from service.dispatcher.context import Clock, utc_now
from service.dispatcher.garbage import Garbage
from service.settings import Settings
from tests.support.api_under_test import Api, served
from tests.support.databases import Postgres, database_folder, postgres_server
from tests.support.uploads import dispatcher_context

DATABASES = ("sqlite", "postgresql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the databases of a test that names none itself: both, or the one that its name decides."""
    item = metafunc.definition
    named = {name for mark in item.iter_markers("parametrize") for name in names_of(mark)}
    if "database_url" not in metafunc.fixturenames or "database_url" in named:
        return
    # Seven tests of eight get SQLite, which takes a third of the time; the same one in every run.
    one = "postgresql" if zlib.crc32(item.nodeid.encode()) % 8 == 0 else "sqlite"
    dialect = item.get_closest_marker("dialect")
    asked = metafunc.config.getoption("databases")
    databases = {None: DATABASES if dialect else (one,), "both": DATABASES}.get(asked, (asked,))
    slow = dialect.kwargs.get("slow") if dialect and asked is None else None
    chosen = [pytest.param(it, marks=pytest.mark.slow if it == slow else []) for it in databases]
    metafunc.parametrize("database_url", chosen, indirect=True)


def names_of(parametrize: pytest.Mark) -> list[str]:
    """Return the names of the arguments that a mark gives values."""
    names = parametrize.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for this test process."""
    with postgres_server(database_folder("postgres")) as server:
        databases = Postgres(server.address, server.programs)
        yield databases
        databases.close()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database that tests copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def sqlite_folder() -> Iterator[Path]:
    """Folder of the SQLite database that the tests of this process use one after another."""
    folder = database_folder("sqlite")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database, at the same address for all tests of this process."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("sqlite_folder")
        # A new file instead of new content, because the last one may still be open.
        for left in folder.iterdir():
            left.unlink()
        shutil.copy(request.getfixturevalue("migrated_sqlite"), folder / "dasl.db")
        yield f"sqlite:///{folder / 'dasl.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server("dasl")
    yield url
    server.drop(url)


@pytest.fixture(scope="session")
def opened() -> dict[str, Database]:
    """Cache of `Database` objects, because each holds the statements that SQLAlchemy has compiled."""
    return {}


@pytest.fixture
def database(database_url: str, opened: dict[str, Database]) -> Iterator[Database]:
    """An open `Database` on `database_url`, without connections at first."""
    if database_url not in opened:
        opened[database_url] = Database(database_url)
    yield opened[database_url]
    kept = opened.pop(database_url)
    pool = kept.engine.pool
    assert isinstance(pool, QueuePool)
    if pool.checkedout() == 0:  # otherwise the next test might wait for an open transaction
        opened[database_url] = kept
    kept.dispose()


@pytest.fixture
def api(database: Database, database_url: str, tmp_path: Path) -> Iterator[Api]:
    """An API on a database, with a client whose token has the scope `submit`."""
    settings = Settings(
        home=tmp_path / "home",
        database_url=database_url,
        stream_poll_seconds=0.02,
        stream_heartbeat_seconds=0.1,
        max_body_bytes=200_000,
    )
    with served(settings, database) as api:
        yield api


@pytest.fixture
def clock() -> Clock:
    return utc_now


@pytest.fixture
def garbage(api: Api, clock: Clock) -> Iterator[Garbage]:
    """The dispatcher's garbage collection, which holds the lease and makes no request to Ray."""
    with dispatcher_context(api.settings, api.database, clock) as shared:
        yield Garbage(shared, Adoption(shared))
