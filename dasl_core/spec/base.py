"""Base class of all parts of a spec, and helpers for error messages."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dasl_core.text import cut

Auto = Literal["auto"]
Narrowed = TypeVar("Narrowed", bound="SpecModel")


@cache
def _descriptions(module: str) -> dict[tuple[str, str], str]:
    """Return the strings below the fields of a module's classes, by class and field.

    pydantic reads them, too (`use_attribute_docstrings`), but whenever the module is imported, which takes 70 ms.
    """
    classes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        (model.name, field.target.id): " ".join(text.split())
        for model in classes
        if isinstance(model, ast.ClassDef)
        for field, below in pairwise(model.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(text := below.value.value, str)
    }


def _describe_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the descriptions of a model's fields to its JSON Schema."""
    for name, field in schema.get("properties", {}).items():
        bases = (base for base in model.__mro__ if name in inspect.get_annotations(base))
        defining = next(bases, model)
        if description := _descriptions(defining.__module__).get((defining.__name__, name)):
            field["description"] = description


class StrictModel(BaseModel):
    """Base class of what people send: refuses unknown keys and values of another type, which pydantic would convert."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_conversions(cls, value: Any) -> Any:
        """Refuse booleans and "5" where numbers are expected, and 0 and "no" where booleans are."""
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields
        return {
            name: _unconverted(item, fields[name]) if name in fields else item
            for name, item in value.items()
        }


class SpecModel(StrictModel):
    """Base class of the parts of a JobSpec: immutable.

    A string below a field is its description, in the JSON Schema and in docs/spec.md.
    """

    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra=_describe_fields,
    )

    def narrow(self, to: type[Narrowed], **updates: Any) -> Narrowed:
        """Return these settings as the subclass `to`, with `updates` for its narrower fields."""
        return to.model_validate({**dict(self), **updates})

    def without_auto(
        self, to: type[Narrowed], automatic: Mapping[str, Any], **updates: Any
    ) -> Narrowed:
        """Return `narrow(to, **updates)` with the values of `automatic` for the fields that are "auto"."""
        chosen = {name: value for name, value in automatic.items() if getattr(self, name) == "auto"}
        return self.narrow(to, **chosen, **updates)


def _unconverted(value: Any, field: FieldInfo) -> Any:
    refused = {"number": _is_no_number, "boolean": _is_no_boolean}.get(kind_of(field))
    return value if refused is None else _without(value, refused)


def kind_of(field: FieldInfo) -> Literal["number", "boolean", "other"]:
    """Whether a field takes numbers or booleans, and no arbitrary strings."""
    types = set(_types(field.annotation)) & {bool, int, float, str}
    if types == {bool}:
        return "boolean"
    return "number" if types and not types & {bool, str} else "other"


def _is_no_number(value: Any) -> bool:
    try:
        return isinstance(value, bool) or (isinstance(value, str) and bool([float(value)]))
    except ValueError:
        return False  # pydantic refuses it, or it is a choice such as "auto"


# By pydantic; other strings it refuses, or they are choices.
_TAKEN_AS_BOOLEANS = {"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"}


def _is_no_boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _TAKEN_AS_BOOLEANS
    return isinstance(value, int | float) and not isinstance(value, bool)


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


class _Refused:
    """A value that pydantic converts to nothing; messages show it as it was given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return shorten(self.value)


def _without(value: Any, refused: Callable[[Any], bool]) -> Any:
    if isinstance(value, list):
        return [_without(item, refused) for item in value]
    return _Refused(value) if refused(value) else value


def shorten(value: Any, limit: int = 80) -> str:
    """Return `value` in Python's notation with null, true and false as in JSON, cut to `limit`.

    Reads only the part of the value that is shown, so a hostile value can neither fill an error message nor
    take long.
    """
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:
            break
    return cut(text, limit)


def _pieces(value: Any, limit: int) -> Iterator[str]:
    """Yield the text of a value piece by piece, so that the caller can stop early."""
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
        yield hex(value)  # Python refuses to print such long integers in decimal
    elif value is None or isinstance(value, bool):
        yield {None: "null", True: "true", False: "false"}[value]
    else:
        yield repr(value)


def problem(message: str, given: Any, expected: str, field: str = "") -> PydanticCustomError:
    """Return a validation error that `field_problems` translates into a `FieldProblem`.

    Args:
        field: the invalid field, for checks across several parts, where pydantic does not know it.
    """
    return PydanticCustomError(
        "field_problem",
        "{message} (given {given}; expected {expected})",
        {"message": message, "given": shorten(given), "expected": expected, "field": field},
    )
