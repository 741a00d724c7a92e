"""Translate validation errors into messages about fields that users can correct."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import NoneType
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dasl_core.headlines import DIRECTED_METRICS
from dasl_core.spec.base import shorten
from dasl_core.spec.methods import METHODS
from dasl_core.spec.problems import FieldProblem
from dasl_core.text import cut

WHOLE_SPEC = "(the whole spec)"

# Users correct a few at a time, and comparing a hundred thousand unknown keys would be a denial of service.
MOST_PROBLEMS = 50

# Limit on keys in the names of invalid fields, and on names compared with valid ones, which are much shorter.
_LONGEST_NAME = 100


def field_problems(
    error: ValidationError, model: type[BaseModel] | None = None, *, whole: str = WHOLE_SPEC
) -> list[FieldProblem]:
    """Translate a validation error into one `FieldProblem` per invalid field.

    Args:
        model: the validated model; unknown keys are compared with its fields.
        whole: name of the validated document, for a problem without a single field.
    """
    return translate(error.errors(include_url=False), model, whole=whole)


def part_problems(error: ValidationError, model: type[BaseModel]) -> list[FieldProblem]:
    """Translate the validation error of one part of a model, with field paths in the whole model."""
    place = next((path for path, part in _parts(model) if part.__name__ == error.title), ())
    details = (
        cast(ErrorDetails, {**detail, "loc": (*place, *detail["loc"])})
        for detail in error.errors(include_url=False)
    )
    return translate(details, model)


def translate(
    details: Iterable[ErrorDetails],
    model: type[BaseModel] | None = None,
    *,
    whole: str = WHOLE_SPEC,
) -> list[FieldProblem]:
    """Translate the entries of a validation error, at most `MOST_PROBLEMS` of them."""
    problems = [_translate(detail, model, whole) for detail in islice(details, MOST_PROBLEMS)]
    # A field that takes a number, a list or "auto" fails once for each type, but the user made one mistake.
    by_field: dict[str, list[FieldProblem]] = {}
    for problem in problems:
        by_field.setdefault(problem.field, []).append(problem)
    merged = []
    for field, same in by_field.items():
        if any(other.startswith(f"{field}.") for other in by_field):
            continue  # it matched one type of the union, and a value inside is invalid
        same.sort(key=lambda problem: problem.expected == _AUTO)
        choices = dict.fromkeys(problem.expected for problem in same if problem.expected)
        merged.append(replace(same[0], expected=", or ".join(choices)))
    return merged


def closest(name: str, names: Iterable[str]) -> str:
    """Return `"; did you mean X?"` with the most similar valid name, or "" if none is similar."""
    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shorten_name(key: object) -> str:
    """Return a key for use in a field's path: on one line, and cut as `shorten` cuts values."""
    return cut(repr(str(key)[: _LONGEST_NAME + 1])[1:-1], _LONGEST_NAME)


def _translate(detail: ErrorDetails, model: type[BaseModel] | None, whole: str) -> FieldProblem:
    # A discriminated or `T | "auto"` union adds the tried branch to the path, which users did not write, so it is
    # removed. An unknown key may have any name, and is the last part.
    unknown = detail["loc"][-1:] if detail["type"] == "extra_forbidden" else ()
    location = detail["loc"][: len(detail["loc"]) - len(unknown)]
    path = location
    if path[:1] == ("method",) and path[1:2] and path[1] in METHODS:
        path = path[:1] + path[2:]  # remove the discriminator
    # A key of a mapping may be any text, up to the size of the request body.
    parts = (*(part for part in path if not _is_branch(part)), *unknown)
    field = ".".join(map(shorten_name, parts)) or whole
    context = detail.get("ctx", {})
    given = shorten(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            siblings = {
                key: ".".join((*map(str, parts[:-1]), key)) for key in _known_keys(model, location)
            }
            others = (
                {} if model is None else {path.rpartition(".")[2]: path for path in _paths(model)}
            )
            key = str(unknown[0])
            meant = _nearest_path(key, siblings) or _nearest_path(key, others, cutoff=0.8)
            hint = f"; did you mean {meant!r}?" if meant else ""
            return FieldProblem(field, f"unknown key{hint}", given)
        case "missing":
            return FieldProblem(field, "missing required field")
        case "field_problem":
            return FieldProblem(
                context["field"] or field, context["message"], context["given"], context["expected"]
            )
        case "literal_error" | "enum":
            return FieldProblem(field, "is not one of the choices", given, context["expected"])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bound = next(
                f"{sign} {context[key]}" for key, sign in _BOUNDS.items() if key in context
            )
            return FieldProblem(field, "is out of range", given, f"a number {bound}")
        case kind:
            expected = _expected(kind, context) or detail["msg"]
            if context.get("pattern") == METRIC_PATTERN:
                near = closest(str(detail["input"]).lower(), DIRECTED_METRICS)
                return FieldProblem(field, f"is not the name of a metric{near}", given, expected)
            if context.get("pattern") == NAME_PATTERN and field in ("dataset", "evaluate.dataset"):
                expected += "; register a folder first: dasl datasets add FOLDER"
            # YAML reads a name such as 2024 or no as something else.
            if kind == "string_type" and isinstance(detail["input"], int | float):
                expected += " in quotes"
            if kind in _OF_SETTINGS and _may_be_null(model, location):
                expected += ", or null"
            named = kind in _OF_SETTINGS and "name" in _known_keys(model, location)
            if named and isinstance(detail["input"], str):  # `backbone: resnet18`
                name = _nearest_name(detail["input"], model, location)
                expected += f", such as {{name: {shorten(name)[1:-1]}}}"
            if kind == "string_too_short" and not detail["input"]:
                return FieldProblem(field, "is empty", given, expected)
            return FieldProblem(field, "is not valid", given, expected)


def _expected(kind: str, context: Mapping[str, Any]) -> str | None:
    """Return the expected value for an error of this kind; None to use pydantic's message."""
    form = _FORMS.get(kind.removesuffix("_type").removesuffix("_parsing"))
    if form is not None:
        return form
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return _PATTERNS.get(pattern, f"a string matching {pattern}")
    if kind in _LENGTHS:
        bound, singular, plural = _LENGTHS[kind]
        count = context["min_length" if bound == "at least" else "max_length"]
        return f"{bound} {count} {singular if count == 1 else plural}"
    if kind == "value_error":
        return str(context["error"])
    return None


def _known_keys(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[str]:
    """Return the names of the fields at an error's path, which may include union branches."""
    return [name for section in _models_at(model, path) for name in section.model_fields]


def _may_be_null(model: type[BaseModel] | None, path: Sequence[int | str]) -> bool:
    """Whether the field at an error's path accepts null."""
    *parents, name = path or ("",)
    return any(
        NoneType in get_args(section.model_fields[str(name)].annotation)
        for section in _models_at(model, parents)
        if name in section.model_fields
    )


def _nearest_name(name: str, model: type[BaseModel] | None, path: Iterable[int | str]) -> str:
    """Return the most similar allowed value of `name`, or the name itself if all are allowed."""
    choices = [
        str(choice)
        for section in _models_at(model, path)
        if "name" in section.model_fields
        for part in get_args(section.model_fields["name"].annotation)
        for choice in (get_args(part) or [part])
        if choice != "auto"
    ]
    near = difflib.get_close_matches(name[:_LONGEST_NAME], choices, n=1, cutoff=0)
    return near[0] if near else name


def _nearest_path(key: str, paths: Mapping[str, str], cutoff: float = 0.6) -> str | None:
    """Return the path whose key is most similar to the given key; None if no similarity reaches `cutoff`."""
    near = difflib.get_close_matches(key[:_LONGEST_NAME], paths, n=1, cutoff=cutoff)
    return paths[near[0]] if near else None


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all fields except those of methods, rare ones first."""
    for name, field in reversed(model.model_fields.items()):
        if name != "method":
            for inner in _models(field.annotation):
                yield from _paths(inner, f"{prefix}{name}.")
        yield f"{prefix}{name}"


def _parts(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield the models nested in a model, and their base classes, with their paths."""
    for name, field in model.model_fields.items():
        for part in _models(field.annotation):
            yield from (((name,), base) for base in part.__mro__ if issubclass(base, BaseModel))
            yield from (((name, *path), inner) for path, inner in _parts(part))


def _models_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[type[BaseModel]]:
    """Return the models at an error's path; a union may have several."""
    models = [] if model is None else [model]
    for part in path:
        inner = [
            section
            for parent in models
            if part in parent.model_fields
            for section in _models(parent.model_fields[str(part)].annotation)
        ]
        branches = [
            branch
            for branch in models
            if branch.__name__ == part or METHODS.get(str(part)) is branch
        ]
        models = inner or branches or models
    return models


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


_AUTO = "'auto'"
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_OF_SETTINGS = {"dict_type", "model_type", "model_attributes_type"}
_LENGTHS = {
    "string_too_short": ("at least", "character", "characters"),
    "string_too_long": ("at most", "character", "characters"),
    "too_short": ("at least", "entry", "entries"),
    "too_long": ("at most", "entry", "entries"),
}
NAME_PATTERN = r"^[^\x00-\x1f/\\]+$"
LINE_PATTERN = r"^[^\x00-\x1f]+$"
METRIC_PATTERN = r"^[a-z][a-z0-9_]*$"
PROJECT_PATTERN = r"^[^\x00-\x1f/\\#?%:]+$"  # W&B's rule
_PATTERNS = {
    NAME_PATTERN: "a name without slashes, line breaks and other control characters",
    LINE_PATTERN: "a string without line breaks and other control characters",
    PROJECT_PATTERN: "a name without / \\ # ? % : and control characters",
    METRIC_PATTERN: f"one of {', '.join(DIRECTED_METRICS)}",
}
_FORMS = {
    "int": "a whole number",
    "int_from_float": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a string",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
}
_BRANCHES = {"[key]", "int", "float", "str", "bool", "Clip", "StepDecay", "LinearProbe", "FineTune"}


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (
        part in _BRANCHES or part.startswith(("literal[", "tuple[", "function-", "constrained-"))
    )
