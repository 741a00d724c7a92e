"""The processes under load: database, API as `dasl` runs it, dispatcher, and simulated drivers."""

import multiprocessing
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text

from benchmarks.load import cluster, drivers
from benchmarks.load.traffic import Tallies
from service import log_records
from service.db.session import Database
from service.server.listener import bind_listener
from service.server.thread import ApiThread
from service.server.tuning import freeze_garbage_collection, stay_on_one_core
from service.settings import Settings
from tests.support.databases import postgres_server

_SPAWN = multiprocessing.get_context("spawn")
_TROUBLE = re.compile(
    r"database is locked|deadlock|lock timeout|could not serialize", re.IGNORECASE
)
# PostgreSQL logs that its own maintenance was canceled in favor of a query.
_ERROR = re.compile(r"^Traceback|\b(ERROR|CRITICAL|FATAL|PANIC)\b(?!:  canceling autovacuum task)")


@dataclass
class Servers:
    """The running processes and their measurements."""

    url: str
    database: Database
    processes: dict[str, BaseProcess]
    logs: list[Path]
    _server: Path | None
    _drivers: Connection
    _dispatcher: Connection
    _later: list[BaseProcess]

    def start_cluster(self) -> None:
        """Start the dispatcher and the drivers."""
        while self._later:
            self._later.pop().start()

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time of API, dispatcher and PostgreSQL so far."""
        own = (name for name in ("api", "dispatcher") if self.processes[name].pid is not None)
        found = {name: psutil.Process(self.processes[name].pid) for name in own}
        if self._server is not None:
            found["database"] = psutil.Process(int(self._server.read_text().splitlines()[0]))
        return {name: _with_children(process) for name, process in found.items()}

    def take_tallies(self, *, reporting: bool = True) -> Tallies:
        """Return the responses to the drivers since the last call; `reporting`: they send metrics from now on."""
        if self._later:
            return Tallies()
        self._drivers.send(reporting)
        taken: Tallies = self._drivers.recv()
        return taken

    def take_rounds(self) -> list[float]:
        """Return the durations of the dispatcher's rounds since the last call, in seconds."""
        if self._later:
            return []
        self._dispatcher.send(True)
        rounds: list[float] = self._dispatcher.recv()
        return rounds

    def trouble(self) -> dict[str, Any]:
        """Count lines in the logs of API, dispatcher and database that report locks or errors."""
        lines = [
            line
            for log in self.logs
            if log.exists()
            for line in log.read_text(errors="replace").splitlines()
        ]
        locks = [line for line in lines if _TROUBLE.search(line)]
        errors = [line for line in lines if _ERROR.search(line)]
        return {
            "lock_errors": len(locks),
            "error_lines": len(errors),
            "first": (locks + errors)[:10],
        }

    def ended(self) -> list[str]:
        """Return the processes that ended by themselves."""
        return [
            name
            for name, process in self.processes.items()
            if process not in self._later and not process.is_alive()
        ]


@contextmanager
def database_of(kind: str, folder: Path) -> Iterator[tuple[str, list[Path], Path | None]]:
    """Yield the URL of an empty database, its server's logs and file of its process's id.

    PostgreSQL has default settings.
    """
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'dasl.db'}", [], None
        return
    with postgres_server() as server:
        yield server.url, [server.log], server.log.parent / "postmaster.pid"


def database_version(database: Database) -> str:
    """Return the name and version that the database reports."""
    dialect = database.engine.dialect.name
    query = "SELECT sqlite_version()" if dialect == "sqlite" else "SHOW server_version"
    with database.read() as session:
        return f"{dialect} {session.execute(text(query)).scalar_one()}"


@contextmanager
def serving(
    settings: Settings,
    database: Database,
    server_logs: list[Path],
    server: Path | None,
    job_seconds: float,
) -> Iterator[Servers]:
    """Yield servers, each in its own process; only the API is started."""
    folder = settings.home
    with ExitStack() as stack, bind_listener(settings) as listener:
        url = f"http://{settings.host}:{listener.getsockname()[1]}"
        launched, ended = _SPAWN.Queue(), _SPAWN.Queue()
        (drivers_end, ask_drivers), (rounds_end, ask_rounds) = _SPAWN.Pipe(), _SPAWN.Pipe()
        api_log, dispatcher_log = folder / "api.log", folder / "dispatcher.log"
        processes = {
            "api": _SPAWN.Process(target=_serve, args=(settings, api_log, listener)),
            "drivers": _SPAWN.Process(
                target=drivers.drive, args=(url, launched, ended, job_seconds, drivers_end)
            ),
            "dispatcher": _SPAWN.Process(
                target=cluster.dispatch,
                args=(settings, dispatcher_log, launched, ended, rounds_end),
            ),
        }
        for process in processes.values():
            process.daemon = True
            stack.callback(_end, process)
        processes["api"].start()
        yield Servers(
            url,
            database,
            dict(processes),
            [api_log, dispatcher_log, *server_logs],
            server,
            ask_drivers,
            ask_rounds,
            [processes["drivers"], processes["dispatcher"]],
        )


def _with_children(process: psutil.Process) -> float:
    """Return the processor time of a process, its children and those that have ended."""
    total = sum(process.cpu_times()[:4])
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return float(total)


def _end(process: BaseProcess) -> None:
    if process.pid is not None:
        process.terminate()
        process.join(30)


def _serve(settings: Settings, log: Path, listener: socket.socket) -> None:
    """Run the API until SIGTERM."""
    sys.stderr = log.open("w", buffering=1)
    log_records.configure("text", secrets=settings.secrets)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    database = Database(settings.database_url)
    if database.engine.dialect.name != "sqlite":
        stay_on_one_core()  # As `python -m service.server`; with SQLite this stands for `dasl serve`.
    api = ApiThread(settings, database, listener)
    api.start()
    freeze_garbage_collection()
    stop.wait()
    api.stop()
    database.dispose()
