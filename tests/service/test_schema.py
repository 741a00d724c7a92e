"""Migrations keep existing data, and are done once or not at all, on both databases."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, make_url, text

from service.db import migrate
from service.db.session import Database
from tests.support.api_under_test import Api
from tests.support.databases import Postgres
from tests.support.migrations import NEXT, next_version


def revision_of(database: Database) -> str:
    with database.engine.connect() as connection:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())


def columns_of_tenants(database: Database) -> set[str]:
    with database.engine.connect() as connection:
        return {column["name"] for column in inspect(connection).get_columns("tenants")}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'dasl.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.empty()
    yield url
    server.drop(url)


pytestmark = pytest.mark.dialect


def test_upgrade_is_idempotent(database_url: str, database: Database) -> None:
    migrate.upgrade(database_url)
    script = ScriptDirectory.from_config(migrate.configuration())
    assert script.get_heads() == [migrate.head()] == [revision_of(database)]


def test_next_migration_keeps_existing_data(
    api: Api, database: Database, database_url: str, tmp_path: Path
) -> None:
    api.dataset()
    job = api.client.get(f"/v1/jobs/{api.submit()['id']}").json()
    with next_version(tmp_path):
        migrate.upgrade(database_url)
        assert revision_of(database) == NEXT
        with database.engine.connect() as connection:
            assert set(connection.execute(text("SELECT color FROM tenants")).scalars()) == {"blue"}
        assert api.client.get(f"/v1/jobs/{job['id']}").json() == job


def test_failed_migration_changes_nothing(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    before, columns = revision_of(database), columns_of_tenants(database)
    with (
        next_version(tmp_path, "UPDATE nowhere SET nothing = 0"),
        pytest.raises(ValueError, match=r"\(DASL_DATABASE_URL\) cannot be brought up to date: .*"),
    ):
        migrate.upgrade(database_url)
    assert (revision_of(database), columns_of_tenants(database)) == (before, columns)
    migrate.upgrade(database_url)


def test_concurrent_upgrades_take_turns(empty_url: str) -> None:
    """As processes, because Alembic migrates in one thread of a process."""
    code = f"from service.db import migrate; migrate.upgrade({empty_url!r})"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    database = Database(empty_url)
    assert revision_of(database) == migrate.head()
    database.dispose()


def test_upgrade_refuses_unknown_tables(database: Database, database_url: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    expected = rf"has the tables of version 9999, which this DASL does not know; it knows {migrate.head()} at most"
    with pytest.raises(ValueError, match=expected):
        migrate.upgrade(database_url)
    if database.engine.dialect.name == "sqlite":
        folder = Path(str(make_url(database_url).database)).parent
        assert not list(folder.glob("*.backup-*")), "nothing to go back to"


def test_upgrade_error_names_unreachable_database_without_password() -> None:
    url = "postgresql+psycopg://dasl:hunter2@127.0.0.1:1/dasl"
    with pytest.raises(
        ValueError, match=r"127.0.0.1:1/dasl \(DASL_DATABASE_URL\) cannot"
    ) as refused:
        migrate.upgrade(url)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_upgrade_error_names_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "dasl.db"
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(ValueError, match=f"{file}.* is damaged: file is not a database"):
        migrate.upgrade(f"sqlite:///{file}")
