"""Rows that a tenant owns: one of them, or the newest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.db.models import Base

Row = TypeVar("Row", bound=Base)


def owned(kind: type[Row], tenant: str) -> Select[Row]:
    """Select a tenant's rows of a table with the columns `id` and `tenant`, without deleted ones."""
    columns: Any = kind
    query = select(kind).where(columns.tenant == tenant)
    return query.where(columns.deleted_at.is_(None)) if hasattr(kind, "deleted_at") else query


def one(session: Session, query: Select[Row], row_id: str, *, lock: bool = False) -> Row | None:
    """Return the row of a query with this id.

    Args:
        lock: lock it until the transaction ends, and refresh it.
    """
    query = query.where(_kind(query).id == row_id)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def newest(session: Session, query: Select[Row], after: str | None, limit: int) -> Sequence[Row]:
    """Return a page of a query's rows, newest first, and one more, which shows that there is a next page.

    Args:
        after: id of the last row of the previous page.
        limit: rows of a page.
    """
    kind = _kind(query)
    if after is not None:
        query = query.where(kind.id < after)
    return session.scalars(query.order_by(kind.id.desc()).limit(limit + 1)).all()


def _kind(query: Select[*tuple[Any, ...]]) -> Any:
    return query.column_descriptions[0]["entity"]
