"""Answers for an id that no row has, and for a reference that fits no row or several."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select
from sqlalchemy.orm import Session

from service import ids
from service.api.problems import Problem, not_found
from service.db.rows import MOST_CANDIDATES, Row, one


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
    row = one(session, query, row_id, lock=lock) if ids.is_id(prefix, row_id) else None
    if row is None:
        raise not_found(noun, row_id, where)
    return row


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
