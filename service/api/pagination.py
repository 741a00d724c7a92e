"""Keyset pagination, newest first, by ids, which are ordered by time of creation."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

from service.api.parameters import id_of
from service.ids import Prefix

Row = TypeVar("Row")
Item = TypeVar("Item")

After = Annotated[str | None, Query(description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200)]


class Window(NamedTuple):
    """The part of a list that a request asks for: a page after an id."""

    after: str | None
    limit: int


def window(kind: Prefix) -> Any:
    """Return the dependency on the window of a list that is ordered by ids of this kind."""
    check = id_of(kind, "is not a position in this list", "the `next` of the previous page")

    async def get(after: Annotated[After, check] = None, limit: Limit = 50) -> Window:
        return Window(after, limit)

    return Depends(get)


class Page(BaseModel, Generic[Item]):
    """One page; `next` is the `after` of the next request."""

    data: list[Item]
    has_more: bool = False
    next: str | None = None


def page(
    rows: Sequence[Row],
    limit: int,
    to_item: Callable[[Row], Item],
    key: Callable[[Row], str] = attrgetter("id"),
) -> Page[Item]:
    """Build a page of at most `limit` rows.

    Args:
        rows: up to `limit + 1` rows; the additional one means that there is a next page.
        to_item: converts a row to the item of the response.
        key: the id by which the rows are ordered.
    """
    page_rows = rows[:limit]
    has_more = len(rows) > limit
    return Page(
        data=[to_item(row) for row in page_rows],
        has_more=has_more,
        next=key(page_rows[-1]) if has_more else None,
    )
