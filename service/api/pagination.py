"""Keyset pagination, newest first, by ids, which are ordered by time of creation."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel

from service.api.parameters import id_of
from service.ids import Prefix

Row = TypeVar("Row")
Item = TypeVar("Item")

After = Annotated[str | None, Query(description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200)]


def position(kind: Prefix) -> AfterValidator:
    """Return the check that the `after` parameter of a list is an id of this kind."""
    return id_of(kind, "is not a position in this list", "the `next` of the previous page")


class Page(BaseModel, Generic[Item]):
    """One page; `next` is the `after` of the next request."""

    data: list[Item]
    has_more: bool = False
    next: str | None = None


def page(
    rows: Sequence[Row], limit: int, to_item: Callable[[Row], Item], key: Callable[[Row], str]
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
