"""Readiness and metrics of one API process."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from sqlalchemy.exc import SQLAlchemyError

from service.artifacts import free_space
from service.cluster import service as cluster
from service.db.session import Database
from service.observability.metrics import AttemptCounts, ProcessMetrics, Scrape, stored_metrics
from service.observability.probe import Probe
from service.settings import Settings
from service.states import READY

_PROBE_SECONDS = 2.0
# Prometheus times out after 10 s.
_SCRAPE_SECONDS = 5.0

Checks = dict[str, str]


class Observer:
    """Answers `/readyz` and `/metrics` within seconds, even if the database hangs."""

    def __init__(self, version: str, settings: Settings, database: Database) -> None:
        self.process = ProcessMetrics()
        self._version, self._settings, self._database = version, settings, database
        self._counts = AttemptCounts()
        self._readiness = Probe(self._run_checks)
        self._stored = Probe(self._read_metrics)

    async def checks(self) -> Checks:
        """Check database, dispatcher, Ray and storage; each result is `ok` or a reason."""
        try:
            return await self._readiness.result(_PROBE_SECONDS)
        except TimeoutError:
            return self._database_failed(f"does not answer within {_PROBE_SECONDS:g} s")
        except SQLAlchemyError as error:
            return self._database_failed(f"cannot be read ({type(error).__name__})")

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format; without the database, only the process's."""
        checks: Checks
        stored: Sequence[Metric]
        try:
            checks, stored = await self._stored.result(_SCRAPE_SECONDS)
        except (TimeoutError, SQLAlchemyError):
            try:  # A database that is slow, or refuses one statement, works.
                checks, stored = await self._readiness.result(_PROBE_SECONDS), ()
            except (TimeoutError, SQLAlchemyError):
                # Leave out dispatcher and Ray, because unknown is not the same as down.
                checks, stored = {"database": "away"}, ()
        up = {component: result in READY for component, result in checks.items()}
        return generate_latest(Scrape(self._version, self.process, up, stored))

    def _run_checks(self) -> Checks:
        with self._database.read() as session:
            return cluster.readiness(session, self._settings, full=self._database.is_full)

    def _read_metrics(self) -> tuple[Checks, list[Metric]]:
        with self._database.read() as session:
            checks = cluster.readiness(session, self._settings, full=self._database.is_full)
            # Names of tenants must not be public.
            names_tenants = self._settings.metrics_token is not None
            return checks, stored_metrics(session, self._counts, names_tenants=names_tenants)

    def _database_failed(self, database: str) -> Checks:
        unknown = "unknown, as the database cannot be read"
        full = free_space.full(free_space.DATABASE) if self._database.is_full else unknown
        return {"database": database, "dispatcher": unknown, "ray": unknown, "storage": full}


async def _observer(request: Request) -> Observer:
    observer = request.app.state.observer
    assert isinstance(observer, Observer)
    return observer


WithObserver = Annotated[Observer, Depends(_observer)]
