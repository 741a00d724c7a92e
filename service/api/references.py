"""Find a row by its id, or by a reference that a person types: an id or its beginning, a name, or `last`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select
from sqlalchemy import Row as ResultRow
from sqlalchemy.orm import Session

from dasl_core.spec.errors import NAME_PATTERN
from service import ids
from service.api.problems import Problem, not_found
from service.db import rows
from service.db.rows import Row

LAST = "last"
# A reference that fits more rows than these is answered with the newest of them.
MOST_CANDIDATES = 10
Columns = TypeVar("Columns", bound=tuple[Any, ...])


def get(
    session: Session,
    query: Select[Row],
    prefix: ids.Prefix,
    row_id: str,
    noun: str,
    where: str = "",
    *,
    lock: bool = False,
) -> Row:
    """Return the row of a query with this id.

    Args:
        noun, where: name the kind of row, and what was searched, in the message.
        lock: until the transaction ends.

    Raises:
        Problem: 404.
    """
    # PostgreSQL refuses some texts, such as one with NUL, that are no ids.
    row = rows.one(session, query, row_id, lock=lock) if ids.is_id(prefix, row_id) else None
    if row is None:
        raise not_found(noun, row_id, where)
    return row


def resolve(
    session: Session,
    query: Select[*tuple[Any, ...]],
    prefix: ids.Prefix,
    reference: str,
    is_own: ColumnElement[bool],
) -> Sequence[ResultRow[*tuple[Any, ...]]]:
    """Return the rows that a reference fits, newest first, at most one more than `MOST_CANDIDATES`.

    Args:
        query: selects the kind of row, which has an id and a name, before other columns.
        reference: an id; `last`, the newest row for which `is_own`; a name; or the beginning of an id, with or
            without the prefix.
    """
    kind = query.column_descriptions[0]["entity"]
    newest = query.order_by(kind.id.desc()).limit(MOST_CANDIDATES + 1)
    if ids.is_id(prefix, reference):
        return session.execute(query.where(kind.id == reference)).all()
    if reference == LAST:
        return session.execute(newest.where(is_own).limit(1)).all()
    is_name = re.fullmatch(NAME_PATTERN, reference) is not None
    if is_name and (named := session.execute(newest.where(kind.name == reference)).all()):
        return named
    ends = ids.ids_beginning_with(prefix, reference)
    return [] if ends is None else session.execute(newest.where(kind.id.between(*ends))).all()


def check_fits_one(noun: str, reference: str, candidates: Sequence[tuple[str, ...]]) -> None:
    """Check that a reference fits one row.

    Args:
        candidates: id, name and more of each row that it fits, newest first.

    Raises:
        Problem: 404, it fits none; 409, it fits several, which the answer lists.
    """
    if not candidates:
        raise not_found(noun, reference)
    if len(candidates) == 1:
        return
    shown = candidates[:MOST_CANDIDATES]
    number = str(len(shown)) if len(candidates) == len(shown) else f"more than {len(shown)}"
    listed = ", ".join(f"{each[0]} ({', '.join(each[1:])})" for each in shown)
    raise Problem(
        409,
        "ambiguous",
        f"{reference!r} fits {number} {noun}s, newest first: {listed}. Use an id, or more of it",
        extra={f"{noun}s": [each[0] for each in shown]},
    )
