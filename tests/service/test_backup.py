"""`dasl db backup` and `dasl db restore`: complete copies beside a writing service, and the way back."""

import errno
import json
import os
import re
import resource
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url, select
from typer.testing import CliRunner, Result

from service.cli.app import app
from service.db import migrate
from service.db.backup import backup, backup_before_upgrade
from service.db.models import Base
from service.db.restore import restore
from service.db.session import Database
from tests.support.api_under_test import Api
from tests.support.databases import Postgres
from tests.support.migrations import NEXT, next_version

pytestmark = pytest.mark.dialect

sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def programs(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the programs of the tests' PostgreSQL available."""
    monkeypatch.setenv("PATH", f"{postgres.programs}:{os.environ['PATH']}")


def content(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables."""
    database = Database(url)
    try:
        with database.read() as session:
            return {
                name: sorted(map(tuple, session.execute(select(table))), key=repr)
                for name, table in Base.metadata.tables.items()
            }
    finally:
        database.dispose()


def fill(api: Api) -> None:
    worker = api.running(tags={"team": "vision"})
    worker.post("events", type="note", message="with a value", data={"x": [1, None, "\u00fc"]})


def path_of(url: str) -> Path:
    return Path(str(make_url(url).database))


def revision_of(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(revision)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@sqlite_only
def test_restored_sqlite_database_is_the_saved_one(
    api: Api, database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is made beside a writer in the middle of a transaction."""
    monkeypatch.setenv("DASL_DATABASE_URL", database_url)
    fill(api)
    before, file = content(database_url), tmp_path / "dasl.backup"
    with database.write() as session:
        session.execute(Base.metadata.tables["events"].delete())
        saved = run("db", "backup", file, "--json")
    assert json.loads(saved.stdout) == {"file": str(file), "size": file.stat().st_size}
    assert file.stat().st_mode & 0o777 == 0o600
    after = content(database_url)
    assert after != before

    refused = run("db", "restore", file)
    assert refused.exit_code == 1
    assert "is in use; stop `dasl serve`" in refused.stderr
    assert content(database_url) == after
    database.dispose()
    restored = json.loads(run("db", "restore", file, "--json").stdout)
    assert content(database_url) == before
    assert content(f"sqlite:///{restored['replaced']}") == after, "nothing is lost"
    left = {path.name for path in path_of(database_url).parent.iterdir()}
    assert {name.partition("-")[0] for name in left} == {"dasl.db", "dasl.db.replaced"}


@postgresql_only
def test_restored_postgresql_database_is_the_saved_one(
    api: Api, database_url: str, postgres: Postgres, tmp_path: Path, programs: None
) -> None:
    fill(api)
    before, file = content(database_url), tmp_path / "dasl.dump"
    backup(database_url, file)
    with pytest.raises(ValueError, match=r'is not empty, .* RENAME TO "dasl_replaced"'):
        restore(database_url, file)
    assert content(database_url) == before
    empty = postgres.empty()
    assert restore(empty, file) is None
    assert content(empty) == before
    migrate.upgrade(empty)
    postgres.drop(empty)


@pytest.fixture
def owned_url(database_url: str, postgres: Postgres) -> Iterator[str]:
    """A migrated database whose owner has no other rights."""
    address = make_url(postgres.empty())
    name, role = address.database, f"dasl_{uuid.uuid4().hex}"
    run_sql(database_url, f"CREATE ROLE {role} LOGIN", f"ALTER DATABASE {name} OWNER TO {role}")
    url = address.set(username=role).render_as_string(hide_password=False)
    migrate.upgrade(url)
    yield url
    dropped = [f"DROP DATABASE {each}" for each in (name, f"{name}_replaced")]
    run_sql(database_url, *dropped, f"DROP ROLE {role}")


def run_sql(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@postgresql_only
def test_refused_restoration_names_statements_that_make_it_possible(
    database_url: str, owned_url: str, tmp_path: Path, programs: None
) -> None:
    """From PostgreSQL 15 on, a user who does not own the database could not create tables in it."""
    before, file = content(owned_url), tmp_path / "dasl.dump"
    backup(owned_url, file)
    with pytest.raises(ValueError, match="connected to another database such as postgres") as full:
        restore(owned_url, file)
    statements = re.findall(r'(?:ALTER|CREATE) DATABASE "\w+"(?: [A-Z ]+ "\w+")', str(full.value))
    assert len(statements) == 2
    run_sql(database_url, *statements)
    restore(owned_url, file)
    assert content(owned_url) == before


@postgresql_only
def test_newer_postgresql_backup_is_refused(
    database: Database, database_url: str, tmp_path: Path, programs: None
) -> None:
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    backup(database_url, tmp_path / "dump")
    with pytest.raises(
        ValueError, match="dump has the tables of version 9999, which this DASL does not know"
    ):
        restore(database_url, tmp_path / "dump")
    (tmp_path / "cut").write_bytes((tmp_path / "dump").read_bytes()[:100])
    with pytest.raises(ValueError, match="pg_restore failed"):
        restore(database_url, tmp_path / "cut")


def test_backup_of_no_database_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DASL_DATABASE_URL", raising=False)
    refused = run("db", "backup", tmp_path / "file")
    missing = tmp_path / "home" / "dasl.db"
    expected = f"There is no database at {missing}; is DASL_DATABASE_URL or DASL_HOME set?"
    assert (refused.exit_code, refused.stderr) == (1, f"Error: {expected}\n")
    assert list(tmp_path.iterdir()) == []


def test_missing_pg_dump_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = (
        r"pg_dump is not installed .* in PGPASSWORD: pg_dump --format=custom "
        r"--dbname=postgresql://dasl@db/dasl --file=\S+/file$"
    )
    with pytest.raises(ValueError, match=expected):
        backup("postgresql+psycopg://dasl:hunter2@db/dasl", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """A closed SQLite database."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dasl.db").write_bytes(migrated_sqlite.read_bytes())
    return f"sqlite:///{tmp_path}/home/dasl.db"


def test_backup_that_does_not_fit_leaves_nothing(url: str, tmp_path: Path) -> None:
    file = tmp_path / "home" / "copy"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ValueError, match="cannot be copied to"):
            backup(url, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in file.parent.iterdir()] == ["dasl.db"]
    backup(url, file)
    with pytest.raises(ValueError, match="copy exists; choose another name"):
        backup(url, file)


def test_unusable_backups_are_refused_and_change_nothing(url: str, tmp_path: Path) -> None:
    path, file = path_of(url), tmp_path / "backup"
    before = path.read_bytes()
    with pytest.raises(ValueError, match="does not exist"):
        restore(url, file)
    file.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match=r"malformed|is damaged"):
        restore(url, file)
    file.write_text("no database" * 1000)
    with pytest.raises(ValueError, match="not a database"):
        restore(url, file)
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE alembic_version AS SELECT '9999' AS version_num")
        connection.commit()
    with pytest.raises(
        ValueError, match="backup has the tables of version 9999, which this DASL does not know"
    ):
        restore(url, file)
    assert [(each.name, each.read_bytes()) for each in path.parent.iterdir()] == [
        ("dasl.db", before)
    ]


def test_damaged_database_can_be_replaced(url: str, tmp_path: Path) -> None:
    path, file = path_of(url), tmp_path / "backup"
    backup(url, file)
    path.write_bytes(b"no database" * 1000)
    (path.parent / "dasl.db-wal").write_bytes(b"its log")
    aside = restore(url, file)
    assert aside is not None
    assert aside.read_bytes() == b"no database" * 1000
    assert aside.with_name(aside.name + "-wal").read_bytes() == b"its log"
    assert revision_of(path) == revision_of(file)


def test_restoration_that_may_not_keep_the_owner_leaves_no_copy(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = path_of(url), tmp_path / "backup"
    backup(url, file)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(ValueError, match="Operation not permitted"):
        restore(url, file)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert revision_of(path) == revision_of(file)


def test_upgrades_keep_backups_of_others(tmp_path: Path) -> None:
    url = make_url(f"sqlite:///{tmp_path / 'dasl.db'}")
    migrate.upgrade(url.render_as_string())
    own = [tmp_path / f"dasl.db.backup-{name}" for name in ("2026-01", "before-upgrade")]
    for file in own:
        backup(url.render_as_string(), file)
    for revision in ("0007", "0008", "0009"):
        backup_before_upgrade(url, revision)
    assert all(file.exists() for file in own)
    copies = {file.name for file in tmp_path.glob("*.backup-000?")}
    assert copies == {"dasl.db.backup-0008", "dasl.db.backup-0009"}


def test_upgrade_of_sqlite_keeps_a_copy_to_go_back_to(url: str, tmp_path: Path) -> None:
    path, before = path_of(url), content(url)
    with next_version(tmp_path):
        migrate.upgrade(url)
        assert revision_of(path) == NEXT
    with pytest.raises(ValueError, match=f"version {NEXT}, which this DASL does not know"):
        migrate.upgrade(url)
    (copy,) = path.parent.glob("dasl.db.backup-*")
    assert copy.name == f"dasl.db.backup-{migrate.head()}"
    aside = restore(url, copy)
    assert content(url) == before
    assert aside is not None
    assert revision_of(aside) == NEXT
    migrate.upgrade(url)


@sqlite_only
def test_restoration_beside_other_artifacts_is_told(
    api: Api, database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", database_url)
    api.running()
    with database.write() as session:
        uri = "file:///old/artifacts/datasets/ds_x/1/index"
        session.execute(Base.metadata.tables["datasets"].update().values(index_uri=uri))
        session.execute(Base.metadata.tables["dataset_versions"].update().values(index_uri=uri))
    run("db", "backup", tmp_path / "dasl.backup")
    database.dispose()
    for root, warns in (("file:///new", True), ("file:///old/artifacts", False)):
        monkeypatch.setenv("DASL_ARTIFACTS_URI", root)
        restored = run("db", "restore", tmp_path / "dasl.backup")
        assert restored.exit_code == 0
        problem = "it is file:///new, and the backup names files below file:///old/artifacts. Set"
        assert (problem in restored.stderr) is warns


def test_folders_that_no_row_names_are_listed(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an older backup was restored, nothing else finds what is newer."""
    worker = api.running()
    store = Path(api.context.storage.root.removeprefix("file://"))
    monkeypatch.setenv("DASL_DATABASE_URL", database_url)
    monkeypatch.setenv("DASL_ARTIFACTS_URI", api.context.storage.root)
    (store / "jobs" / worker.job_id).mkdir(parents=True, exist_ok=True)
    assert "Every folder" in run("db", "orphans").stdout
    newer = [store / name for name in ("jobs/job_newer", "datasets/ds_newer", "model-runs/mrun_x")]
    for folder in newer:
        folder.mkdir(parents=True)
    listed = json.loads(run("db", "orphans", "--json").stdout)["orphans"]
    assert listed == [folder.as_uri() for folder in newer]
