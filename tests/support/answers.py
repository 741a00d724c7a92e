"""Answers of the API for scripted servers."""

from datetime import UTC, datetime
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel


def answer_of(model: type[BaseModel], **fields: object) -> dict[str, Any]:
    """Return an answer with these fields; the others that it must have are empty."""
    required = {name: each for name, each in model.model_fields.items() if each.is_required()}
    return {name: _empty(each.annotation) for name, each in required.items()} | fields


def _empty(annotation: Any) -> object:
    inner = get_args(annotation)
    if NoneType in inner:
        return None
    kind = get_origin(annotation) or annotation
    if kind is datetime:
        return datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    if isinstance(kind, type):
        return answer_of(kind) if issubclass(kind, BaseModel) else kind()
    return inner[0]  # the first of a `Literal`
