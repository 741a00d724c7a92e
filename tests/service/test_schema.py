"""Migrations agree with the models and keep existing data, on both databases."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import func, insert, inspect, select, text
from sqlalchemy.exc import InvalidRequestError

from service.db import migrate
from service.db.models import Attempt, AuditEntry, Base, Checkpoint, Dataset, Job, Token, Usage
from service.db.session import Database
from service.ledger import repository as ledger
from service.scheduling import repository as scheduling
from tests.support.api_under_test import Api

pytestmark = pytest.mark.dialect


def test_migrated_schema_equals_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_upgrade_is_idempotent(database_url: str, database: Database) -> None:
    migrate.upgrade(database_url)
    script = ScriptDirectory.from_config(migrate.configuration())
    with database.engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    assert version == script.get_current_head()
    assert len(script.get_heads()) == 1


def test_downgrade_removes_every_table(database: Database) -> None:
    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "base")
    with database.engine.connect() as connection:
        diff = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    added = {change[1].name for change in diff if change[0] == "add_table"}
    assert added == set(Base.metadata.tables)


def test_upgrade_from_0001_fills_the_tag_table(
    api: Api, database: Database, database_url: str
) -> None:
    api.dataset()
    original = api.submit(tags={"team": "vision"})["id"]
    api.submit()
    copies = [f"{original[:-4]}{number:04}" for number in range(1200)]  # more than one batch
    with database.engine.begin() as connection:
        query = select(Job.__table__).where(Job.id == original)
        job = dict(connection.execute(query).mappings().one())
        connection.execute(insert(Job), [job | {"id": copy} for copy in copies])
        command.downgrade(migrate.configuration(connection), "0001")
    migrate.upgrade(database_url)
    listed: set[str] = set()
    params = {"tag": "team:vision", "limit": "200"}
    more = True
    while more:
        page = api.client.get("/v1/jobs", params=params).json()
        listed |= {job["id"] for job in page["data"]}
        more, params["after"] = page["has_more"], page["next"]
    assert listed == {original, *copies}


def test_upgrade_from_0002_keeps_runtime_and_settles_old_attempts(
    api: Api, database: Database, database_url: str
) -> None:
    """Attempts that ended long ago are marked as settled."""
    api.dataset()
    now = datetime.now(UTC)
    ended_at = {}
    for hours in (1, 30):
        worker = api.start(api.submit()["id"])
        worker.post("start")
        worker.post("finish", outcome="succeeded")
        ended_at[worker.job_id] = ended = now - timedelta(hours=hours)
        with database.write() as session:
            attempt = session.get_one(Attempt, (worker.job_id, 1))
            attempt.created_at = ended - timedelta(minutes=10)
            attempt.heartbeat_at = attempt.finished_at = ended
    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "0002")
    migrate.upgrade(database_url)
    with database.read() as session:
        stored = {a.job_id: (a.ran_seconds, a.settled) for a in session.scalars(select(Attempt))}
    settled = {job: ended < now - timedelta(days=1) for job, ended in ended_at.items()}
    assert stored == {job: (600, flag) for job, flag in settled.items()}
    assert sorted(settled.values()) == [False, True]


def test_upgrade_refuses_tables_of_a_newer_version(database: Database, database_url: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ValueError, match="has the tables of version 9999, which a newer DASL made"):
        migrate.upgrade(database_url)


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
    with pytest.raises(ValueError, match=f"{file}.* cannot .*: file is not a database"):
        migrate.upgrade(f"sqlite:///{file}")


def test_columns_of_version_0_1_are_not_read(api: Api, database: Database) -> None:
    dataset = api.dataset()
    columns = ("attempt", "token_hash")
    assert not any(f"datasets.{name}" in str(select(Dataset)) for name in columns)
    with database.read() as session:
        row = session.get_one(Dataset, dataset)
        for name in columns:
            with pytest.raises(InvalidRequestError, match="raiseload"):
                getattr(row, name)


def test_view_of_version_0_1_has_its_column_names(database: Database) -> None:
    if database.engine.dialect.name != "postgresql":
        pytest.skip("only a deployment on PostgreSQL has several processes")
    with database.engine.connect() as connection:
        columns = {column["name"] for column in inspect(connection).get_columns("attempts")}
    assert {"job_id", "number", "heartbeat_at", "rank_heard_at", "progressed_at"} <= columns
    assert not {"owner", "kind", "progress_reported_at"} & columns


def test_upgrade_from_0016_charges_jobs_and_their_use_to_users(
    api: Api, database: Database, database_url: str
) -> None:
    api.dataset()
    admin = api.token("admin")
    user = api.client.post("/v1/users", json={"name": "Ada"}, headers=admin).json()["id"]
    body = {"name": "dasl login", "user_id": user, "expires_in_days": 1}
    token = api.client.post("/v1/tokens", json=body, headers=admin).json()
    hers = {"Authorization": f"Bearer {token['token']}"}
    jobs = [
        api.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=headers).json()["id"]
        for headers in (hers, admin)
    ]
    with database.write() as session:
        owner_of_other = session.get_one(Job, jobs[1]).token_id
        for job in jobs:
            ledger.add(session, session.get_one(Job, job), datetime.now(UTC), 1.0, 1.0)
    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "0016")
    migrate.upgrade(database_url)
    with database.read() as session:
        assert set(session.scalars(select(Job.account_id))) == {user, owner_of_other}
        charged = func.coalesce(Usage.account_id, Usage.token_id)
        assert set(session.scalars(select(charged))) == {user, owner_of_other}
        from_login = select(Token.id).where(Token.from_login)
        assert list(session.scalars(from_login)) == [token["id"]]
        users = select(AuditEntry.user_id).where(AuditEntry.token_id == token["id"])
        assert set(session.scalars(users)) == {user}


def test_upgrade_from_0016_leaves_the_accounts_of_ended_jobs_to_the_dispatcher(
    api: Api, database: Database, database_url: str
) -> None:
    """An update of all jobs would lock the table for minutes on PostgreSQL."""
    api.dataset()
    ended, waits = (api.submit()["id"] for _ in range(2))
    assert api.client.post(f"/v1/jobs/{ended}/cancel").status_code == 202
    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "0016")
    migrate.upgrade(database_url)
    with database.write() as session:
        without = select(Job.id).where(Job.account_id.is_(None))
        assert list(session.scalars(without)) == [ended]
        assert scheduling.add_accounts(session, 10) == 1
        assert session.get_one(Job, ended).account_id == session.get_one(Job, waits).account_id


def test_upgrade_from_0017_empties_the_manifests_of_deleted_checkpoints(
    api: Api, database: Database, database_url: str
) -> None:
    api.dataset()
    worker = api.start(api.submit()["id"])
    worker.post("start")
    files = [{"name": "weights", "size": 1, "sha256": "0" * 64}]
    report = {"epoch": 1.0, "files": files, "metrics": {}, "final": False}
    saved = [
        worker.post(
            "checkpoints", step=step, uri=f"{worker.uri}/checkpoints/step-{step}", **report
        ).json()["id"]
        for step in (1, 2)
    ]
    with database.write() as session:
        session.get_one(Checkpoint, saved[0]).state = "deleted"
    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "0017")
    migrate.upgrade(database_url)
    with database.read() as session:
        manifests = {row.id: row.files for row in session.scalars(select(Checkpoint))}
    assert manifests == {saved[0]: [], saved[1]: files}
