"""What all parts of a spec share."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

Auto = Literal["auto"]
Narrowed = TypeVar("Narrowed", bound="SpecModel")


class SpecModel(BaseModel):
    """A part of a JobSpec: unknown keys are refused, and a spec never changes once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def narrow(self, to: type[Narrowed], **chosen: Any) -> Narrowed:
        """Return these settings as `to`, a subclass with narrower fields, which `chosen` holds."""
        return to.model_validate({**dict(self), **chosen})

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_no_booleans(cls, given: Any) -> Any:
        """Pydantic would take `true`, and YAML's `yes`, for 1: as a text it is refused like any other."""
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        return {
            name: _without_booleans(value)
            if name in fields and _of_numbers(fields[name])
            else value
            for name, value in given.items()
        }


def _of_numbers(field: FieldInfo) -> bool:
    """Whether a field takes numbers, and neither booleans nor any text."""
    types = set(_types(field.annotation))
    return bool(types & {int, float}) and not types & {bool, str}


def _types(annotation: Any) -> Iterator[type]:
    if get_origin(annotation) is Literal:
        yield from (int for value in get_args(annotation) if type(value) is int)
    elif get_origin(annotation) is Annotated:
        yield from _types(get_args(annotation)[0])
    elif get_origin(annotation) is not None:
        for part in get_args(annotation):
            yield from _types(part)
    else:
        yield annotation


def _without_booleans(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return [_without_booleans(each) for each in value] if isinstance(value, list) else value


def shorten(value: Any, limit: int = 80) -> str:
    """`repr(value)`, cut so that a hostile value cannot fill an error body.

    No more of the value is looked at than is shown, however large or deep it is.
    """
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:
            return text[: limit - 3] + "..."
    return text


def _pieces(value: Any, limit: int) -> Iterator[str]:
    """`repr(value)` from its beginning, a little at a time."""
    if isinstance(value, str | bytes):
        yield repr(value[: limit + 1])
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(item, limit)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, limit)
        yield "]"
    elif isinstance(value, int) and value.bit_length() > 4 * limit:
        yield hex(value)  # of longer numbers Python gives no decimals
    else:
        yield repr(value)


def problem(message: str, given: Any, expected: str, field: str = "") -> PydanticCustomError:
    """A validation error that `field_problems` turns into the given sentence.

    `field` names the field where pydantic cannot: in a check that spans several parts.
    """
    return PydanticCustomError(
        "field_problem",
        "{message} (given {given}; expected {expected})",
        {"message": message, "given": shorten(given), "expected": expected, "field": field},
    )
