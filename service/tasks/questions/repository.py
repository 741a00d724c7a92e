"""SQL of the questions to searches."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.db.models import SearchQuery
from service.db.rows import changed

ABANDONED = timedelta(minutes=10)
"""Age after which no request awaits the answer, because the process that asked was killed."""


def add(session: Session, query: SearchQuery) -> None:
    session.add(query)
    session.flush()


def count_open(session: Session, embedding_id: str) -> int:
    """Count the unanswered questions to an embedding."""
    query = select(func.count()).select_from(SearchQuery)
    return session.execute(query.where(*_open(embedding_id))).scalar_one()


def unanswered(
    session: Session, embedding_id: str, limit: int, image_bytes: int
) -> Sequence[SearchQuery]:
    """Return the first unanswered questions to an embedding.

    Args:
        limit: most questions to return.
        image_bytes: most bytes of all images together; the first question is returned in any case.
    """
    size = func.coalesce(func.length(SearchQuery.image), 0)
    query = select(SearchQuery.id, size).where(*_open(embedding_id))
    ids: list[str] = []
    total_bytes = 0
    for id, size_of_image in session.execute(query.order_by(SearchQuery.id).limit(limit)):
        total_bytes += size_of_image
        if ids and total_bytes > image_bytes:
            break
        ids.append(id)
    rows = select(SearchQuery).where(SearchQuery.id.in_(ids)).order_by(SearchQuery.id)
    return session.scalars(rows).all()


def _open(embedding_id: str) -> tuple[Any, ...]:
    return SearchQuery.embedding_id == embedding_id, SearchQuery.answer.is_(None)


def answer(session: Session, embedding_id: str, answers: Iterable[Mapping[str, Any]]) -> None:
    """Store answers to questions to an embedding; drop answers that no request awaits."""
    for item in answers:
        query = update(SearchQuery).where(SearchQuery.id == item["id"], *_open(embedding_id))
        changed(session, query.values(answer=dict(item), image=None))


def get_answer(session: Session, query_id: str) -> dict[str, Any] | None:
    """Return the answer to a question, if there is one."""
    query = select(SearchQuery.answer).where(SearchQuery.id == query_id)
    return session.scalars(query).one_or_none()


def remove(session: Session, query_id: str) -> None:
    changed(session, delete(SearchQuery).where(SearchQuery.id == query_id))


def remove_older(session: Session, before: datetime) -> None:
    """Remove questions from before a time, which their process has abandoned."""
    changed(session, delete(SearchQuery).where(SearchQuery.created_at < before))
