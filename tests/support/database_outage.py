"""A temporary database outage."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from service.db.session import Database
from tests.support.polling import wait_for


@contextmanager
def database_outage(database: Database, database_url: str) -> Iterator[None]:
    """Make the database unavailable inside the `with` block and restore it afterwards."""
    database.dispose()
    url = make_url(database_url)
    if url.drivername.startswith("sqlite"):
        path = Path(str(url.database))
        away = path.with_name("away")
        shutil.move(path, away)
        path.mkdir()
        yield
        path.rmdir()
        shutil.move(away, path)
        return
    admin = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    accept = f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS {{}}'
    end = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
    with admin.connect() as connection:
        connection.execute(text(accept.format("false")))
        # Those of threads that have just connected.
        wait_for(lambda: not connection.execute(end, {"name": url.database}).all())
        yield
        connection.execute(text(accept.format("true")))
    admin.dispose()
