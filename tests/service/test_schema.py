"""Migrations and models say the same, on both databases."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from service.db import migrate
from service.db.models import Base
from service.db.session import Database


def test_migrated_schema_equals_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_upgrade_again_changes_nothing(database_url: str, database: Database) -> None:
    migrate.upgrade(database_url)
    script = ScriptDirectory.from_config(migrate.configuration())
    with database.engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    assert version == script.get_current_head()
    assert len(script.get_heads()) == 1


def test_downgrade_removes_every_table(database: Database) -> None:
    from alembic import command

    with database.engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "base")
    with database.engine.connect() as connection:
        diff = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    added = {change[1].name for change in diff if change[0] == "add_table"}
    assert added == set(Base.metadata.tables)
