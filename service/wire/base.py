"""Base of all answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    StoredObject = Any
else:
    StoredObject = dict[str, Any]
"""A JSON object that is returned as stored. The client's records replace it by more specific types."""


class Answer(BaseModel):
    """Base of all answers.

    A field that is added after a release has a default, because clients also read the answers of older servers.
    """

    model_config = ConfigDict(from_attributes=True)
