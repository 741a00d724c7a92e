"""Dependencies of all endpoints: the service's context and the transaction of a request.

Services never commit; `Route` does, after the endpoint has returned and before the answer is sent. A transaction
begins at its first statement and ends in the thread call of the endpoint, so that no request holds a connection or a
lock while it waits for a thread. Otherwise requests in all threads could wait for that lock.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.api import audit_log
from service.api.auth_rate_limit import Failures
from service.api.json_body import StrictRoute
from service.api.last_use import LastUse
from service.api.threads import (
    WORKER_THREADS,
    LimitedThreads,
    Threads,
    heavy_threads,
    path_threads,
    search_threads,
    store_threads,
    upload_threads,
)
from service.artifacts.storage import Storage
from service.db.session import Database
from service.settings import Settings


@dataclass(frozen=True)
class Context:
    """Settings, database, storage and shared counters of one API process."""

    settings: Settings
    database: Database
    storage: Storage
    forbidden: Failures
    """Counts the requests answered with 403, by token."""
    logins: Failures
    """Counts started logins, by address."""
    streams: Counter[str] = field(default_factory=Counter)
    """Number of open live streams, by token."""
    worker_threads: Threads = field(default_factory=lambda: Threads(WORKER_THREADS))
    store_threads: LimitedThreads = field(default_factory=store_threads)
    heavy_threads: LimitedThreads = field(default_factory=heavy_threads)
    path_threads: LimitedThreads = field(default_factory=path_threads)
    upload_threads: LimitedThreads = field(default_factory=upload_threads)
    search_threads: LimitedThreads = field(default_factory=search_threads)
    last_use: LastUse = field(default_factory=LastUse)
    closing: threading.Event = field(default_factory=threading.Event)
    """Set at shutdown, to end the live streams."""
    visited: threading.Event = field(default_factory=threading.Event)
    """Set when a person loads the page or logs in to it."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


async def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


WithContext = Annotated[Context, Depends(_context)]


@dataclass(frozen=True)
class _Transaction:
    session: Session
    request: Request
    writes: bool


_transaction: ContextVar[_Transaction] = ContextVar("transaction")


def _session(begin: Callable[[Context], Session], *, writes: bool = True) -> Any:
    """Return the dependency on a session, in whose transaction the endpoint runs."""

    async def open_session(context: WithContext, request: Request) -> Session:
        session = begin(context)
        _transaction.set(_Transaction(session, request, writes))
        return session

    return Depends(open_session)


def _reader(context: Context) -> Session:
    return context.database.read(statement_seconds=context.settings.statement_seconds)


# Sessions whose transaction begins with the first statement of the endpoint.
ReadSession = Annotated[Session, _session(_reader, writes=False)]
WriteSession = Annotated[Session, _session(lambda context: context.database.writer())]
# For writes that a later request repeats or makes durable: see `Database.writer`.
RelaxedWriteSession = Annotated[
    Session, _session(lambda context: context.database.writer(relaxed_durability=True))
]


@dataclass(frozen=True)
class InTransaction:
    """A dependency's value that is read in the endpoint's transaction, just before the endpoint runs.

    Otherwise the dependency would hold a connection while the request waits for a thread.
    """

    session: Session
    read: Callable[[], Any]


class Route(StrictRoute):
    """Run an endpoint within the transaction of its session."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _transacted(endpoint), **options)


class _RouteInThreads(StrictRoute):
    """Like `Route`, in other threads than most requests. The endpoint needs a session."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        run = _transacted(endpoint)

        @wraps(endpoint)
        async def run_in_threads(**values: Any) -> Any:
            request = _transaction.get().request
            return await self._run(await _context(request), request, partial(run, **values))

        super().__init__(path, run_in_threads, **options)

    async def _run(self, context: Context, request: Request, run: Callable[[], Any]) -> Any:
        raise NotImplementedError


class WorkerRoute(_RouteInThreads):
    """A route in the threads of the workers' requests."""

    async def _run(self, context: Context, request: Request, run: Callable[[], Any]) -> Any:
        return await context.worker_threads.run(run)


class HeavyRoute(_RouteInThreads):
    """A route in the threads of heavy requests. The endpoint needs a caller."""

    async def _run(self, context: Context, request: Request, run: Callable[[], Any]) -> Any:
        return await context.heavy_threads.run_for(request.state.caller.token_id, run)


class StoreRoute(_RouteInThreads):
    """A route whose endpoint returns a function that reads the artifact store and returns the answer.

    The function is called after the transaction, in the threads of the store. The endpoint needs a caller.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options | {"response_model": None})

    async def _run(self, context: Context, request: Request, run: Callable[[], Any]) -> Any:
        answer = await run_in_threadpool(run)
        return await context.store_threads.run_for(request.state.caller.token_id, answer)


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
            if transaction.writes:
                # Use the same transaction, so that the change and its audit row are committed together.
                audit_log.record_change(session, transaction.request)
                session.commit()
        return answer

    return run
