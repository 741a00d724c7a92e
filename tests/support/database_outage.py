"""A temporary database outage."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.errors import ObjectInUse
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

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
    with admin.connect() as connection:
        rename = text(f'ALTER DATABASE "{url.database}" RENAME TO away')

        def renamed() -> bool:
            database.dispose()
            try:
                connection.execute(rename)
            except OperationalError as error:
                if not isinstance(
                    error.orig, ObjectInUse
                ):  # else another thread has just connected
                    raise
                return False
            return True

        wait_for(renamed)
        yield
        connection.execute(text(f'ALTER DATABASE away RENAME TO "{url.database}"'))
    admin.dispose()
