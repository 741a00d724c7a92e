"""Restoration of a backup of the database. The replaced database is kept."""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, inspect, make_url
from sqlalchemy.exc import SQLAlchemyError

from service.db.backup import (
    check_installed,
    copy_sqlite,
    open_existing,
    partial_file,
    publish,
    run_postgresql,
    sqlite_path,
    without_password,
)
from service.db.migrate import check_supported
from service.db.session import first_line, make_engine

# The revision is in the line after COPY in a script of PostgreSQL.
_REVISION = re.compile(r"^COPY [^\n]*alembic_version[^\n]*\n(\S+)$", re.MULTILINE)
_LOCK_SECONDS = 2.0


def restore(url: str, file: Path) -> Path | None:
    """Replace the database by a backup; return the path of the replaced SQLite file, if there was one.

    A PostgreSQL database must be empty.

    Raises:
        ValueError: the backup is damaged or of an unknown version, or the database is in use, not empty or
            unreachable. Nothing is changed.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist; give a file that `dasl db backup` wrote")
    database = make_url(url)
    if database.get_backend_name() == "sqlite":
        return _restore_sqlite(sqlite_path(database), file)
    _restore_postgresql(database, file)
    return None


def _restore_sqlite(path: Path, file: Path) -> Path | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as partial:
        copy_sqlite(file, partial)
        check_supported(_revision(file), str(file))
        with _unused(path):
            if path.exists():
                # Keep the owner if root restores. Do it before the second name is created, because it may fail.
                shutil.copymode(path, partial)
                before = path.stat()
                os.chown(partial, before.st_uid, before.st_gid)
            aside = _keep_aside(path)
            publish(partial, path)
    return aside


def _revision(file: Path) -> str | None:
    try:
        with closing(open_existing(file)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{file} is not a database of DASL: {error}") from error
    return str(row[0]) if row else None


@contextmanager
def _unused(path: Path) -> Iterator[None]:
    """Lock the database exclusively within the block, if it exists and is readable.

    Raises:
        ValueError: another process has it open.
    """
    if not path.exists():
        yield
        return
    in_use = f"{path} is in use; stop `dasl serve`, or the API and the dispatcher, first"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=_LOCK_SECONDS)) as connection:
        try:
            # This moves the write-ahead log into the file, and fails while another process has it open.
            (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            if mode != "delete":
                raise ValueError(in_use)
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            problem = in_use if "locked" in str(error) else f"{path} cannot be replaced: {error}"
            raise ValueError(problem) from error
        except sqlite3.DatabaseError:
            pass  # a damaged database may be replaced
        yield


def _keep_aside(path: Path) -> Path | None:
    """Link the database to a second name and return that; `None` if there is no database.

    It keeps its first name until it is replaced, so that a crash leaves the old database in place.
    """
    existed = path.exists()
    aside = path.with_name(f"{path.name}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
    if existed:
        os.link(path, aside)
    # Logs exist only if the database is damaged or missing. They must not be applied to the new one.
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.rename(aside.with_name(aside.name + suffix))
    return aside if existed else None


def _restore_postgresql(url: URL, file: Path) -> None:
    in_one = (
        *("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"),
        *(f"--dbname={without_password(url)}", str(file)),
    )
    check_installed("pg_restore", *in_one)
    only_revision = ("--data-only", "--table=alembic_version", "--file=-", str(file))
    revision = _REVISION.search(run_postgresql("pg_restore", url, *only_revision))
    check_supported(revision[1] if revision else None, str(file))
    _check_empty(url)
    run_postgresql("pg_restore", url, *in_one)


def _check_empty(url: URL) -> None:
    engine = make_engine(url.render_as_string(hide_password=False))
    masked = url.render_as_string(hide_password=True)
    try:
        with engine.connect() as connection:
            tables = inspect(connection).get_table_names()
    except SQLAlchemyError as error:
        raise ValueError(f"The database {masked} cannot be read: {first_line(error)}") from error
    finally:
        engine.dispose()
    if tables:
        name = url.database
        # PostgreSQL 15 and newer allow tables in the schema public only to its owner.
        owner = f' OWNER "{url.username}"' if url.username else ""
        raise ValueError(
            f"The database {masked} is not empty, and only an empty one can be restored. Stop the service and, "
            f'connected to another database such as postgres, keep the old one with ALTER DATABASE "{name}" '
            f'RENAME TO "{name}_replaced", and create an empty one with CREATE DATABASE "{name}"{owner}'
        )
