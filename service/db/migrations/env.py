"""Alembic's entry point; `service.db.migrate` hands it a connection."""

from alembic import context

from service.db.models import Base

connection = context.config.attributes["connection"]
assert connection is not None, "run migrations through service.db.migrate.upgrade(url)"
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    # SQLite alters a table by copying it.
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
