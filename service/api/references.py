"""Answers for an id that no row has, and for a reference that matches no row or several."""

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
        noun, where: the kind of row, and where it was searched, for the message.
        lock: whether to lock the row until the transaction ends.

    Raises:
        Problem: 404.
    """
    # PostgreSQL refuses some texts, such as one with NUL, that are no ids.
    row = one(session, query, row_id, lock=lock) if ids.is_id(prefix, row_id) else None
    if row is None:
        raise not_found(noun, row_id, where)
    return row


def check_matches_one(noun: str, reference: str, candidates: Sequence[tuple[str, ...]]) -> None:
    """Check that a reference matches one row.

    Args:
        candidates: id, name and more columns of each matching row, newest first.

    Raises:
        Problem: 404, it matches no row; 409, it matches several rows, which the answer lists.
    """
    if not candidates:
        raise not_found(noun, reference)
    if len(candidates) == 1:
        return
    listed_rows = candidates[:MOST_CANDIDATES]
    number = (
        str(len(listed_rows))
        if len(candidates) == len(listed_rows)
        else f"more than {len(listed_rows)}"
    )
    listed = ", ".join(f"{row[0]} ({', '.join(row[1:])})" for row in listed_rows)
    raise Problem(
        409,
        "ambiguous",
        f"{reference!r} matches {number} {noun}s, newest first: {listed}. Use an id, or more of it",
        extra={f"{noun}s": [row[0] for row in listed_rows]},
    )
