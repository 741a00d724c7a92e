"""Dependencies of all endpoints: the service's context and the transaction of a request.

Services never commit; `Route` does, after the endpoint has returned and before the answer is sent. A
transaction begins at its first statement and ends in the same thread call that runs the endpoint.
Therefore no request holds a connection or a lock while it waits for a thread; otherwise requests that
occupy all threads could wait for that lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from service.api import audit_log
from service.api.auth_rate_limit import Failures
from service.api.json_body import StrictRoute
from service.artifacts.storage import Storage
from service.db.session import Database
from service.scheduling.decision_cache import DecisionCache
from service.settings import Settings


@dataclass(frozen=True)
class Context:
    """Settings, database, storage and shared counters of one API process."""

    settings: Settings
    database: Database
    storage: Storage
    forbidden: Failures
    """Counts the requests answered with 403, by token."""
    decisions: DecisionCache
    """Decisions on the queue that all requests share."""
    streams: Counter[str] = field(default_factory=Counter)
    """Number of open live streams, by token."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set at shutdown, to end the live streams."""


async def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


WithContext = Annotated[Context, Depends(_context)]


@dataclass(frozen=True)
class _Transaction:
    session: Session
    changed_by: Request | None
    """The writing request; `None` in a read-only transaction."""


_transaction: ContextVar[_Transaction] = ContextVar("transaction")


async def _read(context: WithContext) -> Session:
    session = context.database.reader()
    _transaction.set(_Transaction(session, None))
    return session


async def _write(context: WithContext, request: Request) -> Session:
    session = context.database.writer()
    _transaction.set(_Transaction(session, request))
    return session


async def _write_relaxed(context: WithContext, request: Request) -> Session:
    session = context.database.writer(relaxed_durability=True)
    _transaction.set(_Transaction(session, request))
    return session


# Sessions whose transaction begins with the first statement of the endpoint.
ReadSession = Annotated[Session, Depends(_read)]
WriteSession = Annotated[Session, Depends(_write)]
# For writes that a later request repeats or makes durable: see `Database.writer`.
RelaxedWriteSession = Annotated[Session, Depends(_write_relaxed)]


@dataclass(frozen=True)
class InTransaction:
    """The value of a dependency, to be read in the endpoint's transaction just before the endpoint runs.

    If the dependency read it, it would hold a connection while the request waits for a thread.
    """

    session: Session
    read: Callable[[], Any]


class Route(StrictRoute):
    """Run an endpoint within the transaction of its session."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _transacted(endpoint), **options)


def _transacted(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    def run(**values: Any) -> Any:
        transaction = _transaction.get(None)
        if transaction is None:
            return endpoint(**values)
        with transaction.session as session:
            for name, value in values.items():
                if isinstance(value, InTransaction):
                    assert value.session is session, f"{name} is of another transaction"
                    values[name] = value.read()
            answer = endpoint(**values)
            if transaction.changed_by is not None:
                # In the same transaction, so that change and audit row are committed together.
                audit_log.record_change(session, transaction.changed_by)
                session.commit()
        return answer

    return run
