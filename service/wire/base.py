"""Base of all answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    StoredObject = Any
else:
    StoredObject = dict[str, Any]
"""A JSON object that is shown as it was stored. Records of the client give it a type of their own."""


class Answer(BaseModel):
    """Base of all answers.

    A field that is added after a release has a default, because clients also read the answers of older servers.
    """

    model_config = ConfigDict(from_attributes=True)
