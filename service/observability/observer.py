"""One API process looking at itself and at what it depends on."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import generate_latest
from sqlalchemy.exc import SQLAlchemyError

from service.cluster import service as cluster
from service.db.session import Database
from service.observability.metrics import ProcessMetrics, QueueWaits, Scrape, State, read_state
from service.observability.probe import Probe
from service.settings import Settings

_PROBE_SECONDS = 2.0
# Prometheus itself gives up after 10 s.
_SCRAPE_SECONDS = 5.0

Checks = dict[str, str]


class Observer:
    """Answers `/readyz` and `/metrics`, soon and also when the database does not answer."""

    def __init__(self, version: str, settings: Settings, database: Database) -> None:
        self.process = ProcessMetrics()
        self._version, self._settings, self._database = version, settings, database
        self._waits = QueueWaits()
        self._readiness = Probe(self._look)
        self._state = Probe(self._look_closely)

    async def checks(self) -> Checks:
        """For each thing that work depends on: `ok`, or what is wrong with it."""
        try:
            return await self._readiness.ask(_PROBE_SECONDS)
        except TimeoutError:
            return _blind(f"does not answer within {_PROBE_SECONDS:g} s")
        except SQLAlchemyError as error:
            return _blind(f"cannot be read ({type(error).__name__})")

    async def metrics(self) -> bytes:
        """In Prometheus' text format; without the database as much as is known without it."""
        checks: Checks
        state: State | None
        try:
            checks, state = await self._state.ask(_SCRAPE_SECONDS)
        except (TimeoutError, SQLAlchemyError):
            # Of the others nothing is known, which is not the same as that they do not work.
            checks, state = {"database": "away"}, None
        up = {component: said == "ok" for component, said in checks.items()}
        return generate_latest(Scrape(self._version, self.process, up, state))

    def _look(self) -> Checks:
        with self._database.read() as session:
            return cluster.readiness(session, self._settings)

    def _look_closely(self) -> tuple[Checks, State]:
        with self._database.read() as session:
            return cluster.readiness(session, self._settings), read_state(session, self._waits)


async def _observer(request: Request) -> Observer:
    observer = request.app.state.observer
    assert isinstance(observer, Observer)
    return observer


WithObserver = Annotated[Observer, Depends(_observer)]


def _blind(database: str) -> Checks:
    unknown = "unknown, for the database does not tell"
    return {"database": database, "dispatcher": unknown, "ray": unknown}
