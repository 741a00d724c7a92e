"""SQL of the questions to searches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.db.models import SearchQuery

ABANDONED = timedelta(minutes=10)
"""No request awaits the answer to an older question: the process that asked it was killed."""


def add(session: Session, query: SearchQuery) -> None:
    """Add a question."""
    session.add(query)
    session.flush()


def count_open(session: Session, embedding_id: str) -> int:
    """How many questions to an embedding have no answer."""
    query = select(func.count()).select_from(SearchQuery)
    return session.execute(query.where(*_open(embedding_id))).scalar_one()


def open_ones(
    session: Session, embedding_id: str, limit: int, image_bytes: int
) -> Sequence[SearchQuery]:
    """Return questions to an embedding without an answer, the first ones.

    Args:
        limit: the most questions.
        image_bytes: of all of their images together, unless the first one alone has more.
    """
    size = func.coalesce(func.length(SearchQuery.image), 0)
    query = select(SearchQuery.id, size).where(*_open(embedding_id))
    chosen: list[str] = []
    left = image_bytes
    for id, bytes_of_image in session.execute(query.order_by(SearchQuery.id).limit(limit)):
        left -= bytes_of_image
        if chosen and left < 0:
            break
        chosen.append(id)
    rows = select(SearchQuery).where(SearchQuery.id.in_(chosen)).order_by(SearchQuery.id)
    return session.scalars(rows).all()


def _open(embedding_id: str) -> tuple[Any, ...]:
    return SearchQuery.embedding_id == embedding_id, SearchQuery.answer.is_(None)


def answer(session: Session, embedding_id: str, answers: Iterable[Mapping[str, Any]]) -> None:
    """Store answers to questions to an embedding; those that no request awaits any more are dropped."""
    for each in answers:
        session.execute(
            update(SearchQuery)
            .where(SearchQuery.id == each["id"], *_open(embedding_id))
            .values(answer=dict(each), image=None)
            .execution_options(synchronize_session=False)
        )


def answer_to(session: Session, query_id: str) -> dict[str, Any] | None:
    """Return the answer to a question, if there is one."""
    query = select(SearchQuery.answer).where(SearchQuery.id == query_id)
    return session.scalars(query).one_or_none()


def remove(session: Session, query_id: str) -> None:
    """Remove a question."""
    session.execute(
        delete(SearchQuery)
        .where(SearchQuery.id == query_id)
        .execution_options(synchronize_session=False)
    )


def remove_older(session: Session, before: datetime) -> None:
    """Remove questions of before a time, whose process has left them."""
    session.execute(
        delete(SearchQuery)
        .where(SearchQuery.created_at < before)
        .execution_options(synchronize_session=False)
    )
