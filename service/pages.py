"""Lists, newest first, paged by keyset: an id sorts by its time of creation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

Row = TypeVar("Row")
Item = TypeVar("Item")

After = Annotated[str | None, Query(max_length=40, pattern=r"^[a-z0-9_]+$", description="`next`")]
Limit = Annotated[int, Query(ge=1, le=200)]


class Page(BaseModel, Generic[Item]):
    """One page; `next` goes into `after` of the next request."""

    data: list[Item]
    has_more: bool = False
    next: str | None = None


def page(
    rows: Sequence[Row], limit: int, show: Callable[[Row], Item], key: Callable[[Row], str]
) -> Page[Item]:
    """A page of at most `limit` of the rows, of which `limit + 1` were asked for."""
    kept = rows[:limit]
    more = len(rows) > limit
    return Page(
        data=[show(row) for row in kept], has_more=more, next=key(kept[-1]) if more else None
    )
