"""What endpoints share: settings, database, storage; and a request's transaction.

Services never commit: the request does, when its endpoint has returned and before the answer is
sent. A transaction connects at its first statement, so a request that waits for a thread holds
no connection.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from service.audit import trail
from service.db.session import Database
from service.settings import Settings
from service.storage import Storage


@dataclass(frozen=True)
class Context:
    """One service's surroundings. `closing` is set when it shuts down: live streams then end."""

    settings: Settings
    database: Database
    storage: Storage
    closing: threading.Event = field(default_factory=threading.Event)


async def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


WithContext = Annotated[Context, Depends(_context)]


def _read(context: WithContext) -> Iterator[Session]:
    with context.database.read() as session:
        yield session


def _write(context: WithContext, request: Request) -> Iterator[Session]:
    with context.database.write() as session:
        yield session
        # In the transaction of the change: no change without its row, no row without its change.
        trail.record_change(session, request)


ReadSession = Annotated[Session, Depends(_read, scope="function")]
WriteSession = Annotated[Session, Depends(_write, scope="function")]
