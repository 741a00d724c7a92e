"""Copies of the database in one file: complete, durable and checked before the file gets its name.

SQLite is copied by its online backup while the service writes; a copy of its file would lack the write-ahead log.
PostgreSQL is copied by `pg_dump`.
"""

import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, make_url

from dasl_core.atomic import sync

_KEPT_BEFORE_UPGRADES = 2


def backup(url: str, file: Path) -> None:
    """Copy the database to a new file, even while the service is running.

    Raises:
        ValueError: the file exists or cannot be written, or the database cannot be read or is damaged.
    """
    if file.exists():
        raise ValueError(f"{file} exists; choose another name")
    database = make_url(url)
    is_sqlite = database.get_backend_name() == "sqlite"
    if is_sqlite and not sqlite_path(database).exists():
        raise ValueError(
            f"There is no database at {sqlite_path(database)}; is DASL_DATABASE_URL or DASL_HOME set?"
        )
    arguments = ("--format=custom", f"--dbname={without_password(database)}")
    if not is_sqlite:
        check_installed("pg_dump", *arguments, f"--file={file}")
    with partial_file(file) as partial:
        if is_sqlite:
            copy_sqlite(sqlite_path(database), partial)
        else:
            run_postgresql("pg_dump", database, *arguments, f"--file={partial}")
            run_postgresql("pg_restore", database, "--list", str(partial))
        publish(partial, file)


def backup_before_upgrade(url: URL, revision: str) -> None:
    """Copy an SQLite database to `<name>.backup-<revision>` in the same folder; keep the newest two copies.

    Raises:
        ValueError: the copy cannot be written.
    """
    path = sqlite_path(url)
    file = path.with_name(f"{path.name}.backup-{revision}")
    with partial_file(file) as partial:
        copy_sqlite(path, partial)
        publish(partial, file)
    # Do not remove manual backups with a similar name.
    copies = path.parent.glob(f"{path.name}.backup-[0-9][0-9][0-9][0-9]")
    newest_first = sorted(copies, key=lambda copy: copy.stat().st_mtime_ns, reverse=True)
    for old in newest_first[_KEPT_BEFORE_UPGRADES:]:
        old.unlink()


@contextmanager
def partial_file(file: Path) -> Iterator[Path]:
    """Yield a private empty file in the folder of `file`, and remove it at the end if it still exists.

    Raises:
        ValueError: it cannot be written.
    """
    try:
        # Only the owner can read it: a database contains the hashes of tokens.
        descriptor, name = tempfile.mkstemp(".partial", f".{file.name}.", file.parent)
        os.close(descriptor)
        try:
            yield Path(name)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"{file} cannot be written: {error.strerror or error}") from error


def publish(partial: Path, file: Path) -> None:
    """Give a complete file its name, durably."""
    sync(partial)
    partial.replace(file)
    sync(file.parent)


def copy_sqlite(path: Path, target: Path) -> None:
    """Copy a database into an empty file, in one snapshot, and check the copy.

    Raises:
        ValueError: the database cannot be read or is damaged, or the copy cannot be written.
    """
    try:
        with closing(open_existing(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
            # Write a single file without a log; the service switches back.
            copy.execute("PRAGMA journal_mode=DELETE")
            (result,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be copied to {target.parent}: {error}") from error
    if result != "ok":
        raise ValueError(f"{path} is damaged: {result.splitlines()[-1]}")


def open_existing(path: Path) -> sqlite3.Connection:
    """Open an SQLite database without creating it."""
    # Do not open it read-only: such a connection would leave the files of the write-ahead log.
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)


def sqlite_path(url: URL) -> Path:
    """Return the file of an SQLite database."""
    return Path(str(url.database)).absolute()


def check_installed(program: str, *arguments: str) -> None:
    """Check that one of PostgreSQL's programs is installed.

    Args:
        arguments: arguments of the command that the error recommends.

    Raises:
        ValueError: it is not installed.
    """
    if shutil.which(program) is None:
        raise ValueError(
            f"{program} is not installed here. Install PostgreSQL's client programs, or run this where they "
            f"are, with the password in PGPASSWORD: {shlex.join((program, *arguments))}"
        )


def run_postgresql(program: str, url: URL, *arguments: str) -> str:
    """Run one of PostgreSQL's programs and return its output; the password is not an argument.

    Raises:
        ValueError: it fails.
    """
    environment = {**os.environ, **({"PGPASSWORD": url.password} if url.password else {})}
    command_line = [program, *arguments]
    done = subprocess.run(
        command_line, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[:1] or [f"exit code {done.returncode}"]
        raise ValueError(f"{program} failed: {reason[0]}")
    return done.stdout


def without_password(url: URL) -> str:
    """Return the URL for PostgreSQL's programs, without the password."""
    user, host, port, name = url.username, url.host, url.port, url.database
    return str(URL.create("postgresql", user, None, host, port, name, url.query))
