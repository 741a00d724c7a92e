"""Queries that all kinds of rows share: add one, find one by its id, list the newest."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, CursorResult, Delete, Select, Update, select
from sqlalchemy import Row as ResultRow
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dasl_core.spec.errors import NAME_PATTERN
from service import ids
from service.db.models import Base

Row = TypeVar("Row", bound=Base)
LAST = "last"
# A reference that matches more rows than these is answered with the newest of them.
MOST_CANDIDATES = 10


def add(session: Session, row: Base) -> None:
    session.add(row)
    session.flush()


def add_if_new(session: Session, row: Base) -> bool:
    """Store a new row, unless it conflicts with an existing one; return whether it was stored."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True


def changed(session: Session, statement: Update | Delete) -> int:
    """Change rows in the database alone, not in the session's objects; return their number."""
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount


def by_id(session: Session, kind: type[Row], row_id: str) -> Row | None:
    """Return the row of any tenant with this primary key."""
    return session.get(kind, row_id)


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


def matching(
    session: Session,
    query: Select[*tuple[Any, ...]],
    prefix: ids.Prefix,
    reference: str,
    is_own: ColumnElement[bool],
) -> Sequence[ResultRow[*tuple[Any, ...]]]:
    """Return the rows that a reference matches, newest first, at most one more than `MOST_CANDIDATES`.

    Args:
        query: selects the kind of row, which has an id and a name, before other columns.
        reference: an id; `last`, the newest row for which `is_own`; a name; or the beginning of an id, with or
            without the prefix.
    """
    kind = _kind(query)
    newest = query.order_by(kind.id.desc()).limit(MOST_CANDIDATES + 1)
    if ids.is_id(prefix, reference):
        return session.execute(query.where(kind.id == reference)).all()
    if reference == LAST:
        return session.execute(newest.where(is_own).limit(1)).all()
    # PostgreSQL refuses some texts, such as one with NUL, that are no names.
    is_name = re.fullmatch(NAME_PATTERN, reference) is not None
    if is_name and (named := session.execute(newest.where(kind.name == reference)).all()):
        return named
    ends = ids.ids_beginning_with(prefix, reference)
    return [] if ends is None else session.execute(newest.where(kind.id.between(*ends))).all()


def _kind(query: Select[*tuple[Any, ...]]) -> Any:
    return query.column_descriptions[0]["entity"]
