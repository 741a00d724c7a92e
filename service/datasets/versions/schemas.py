"""Response models of the versions of data sets."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel

from service.db.models import DatasetVersion

MAX_NUMBER = 2**31 - 1
"""Limit of the database's type of version numbers."""


class Changes(BaseModel):
    """Numbers of images that differ from the version before."""

    added: int
    removed: int
    changed: int
    unchanged: int


class VersionView(BaseModel):
    """A version of a data set; jobs cannot choose one that is `removed`."""

    number: int
    created_at: datetime
    facts: dict[str, Any]
    changes: Changes | None
    """Null for the first version, and if the version before was not at hand."""
    removed: bool

    @classmethod
    def of(cls, row: DatasetVersion) -> Self:
        """Build the view of a row."""
        changes = (row.report or {}).get("changes")
        return cls(
            number=row.number,
            created_at=row.created_at,
            facts=row.facts,
            changes=None if changes is None else Changes.model_validate(changes),
            removed=row.removed_at is not None,
        )
