"""Errors of a spec, said so that the person who wrote it can mend it."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dasl_core.spec.base import shorten
from dasl_core.spec.methods import METHODS
from dasl_core.spec.problems import FieldProblem

# A person mends a few at a time, and nobody may have a hundred thousand unknown keys compared with
# all known ones.
MOST_PROBLEMS = 50

# Of each key in the name of a field that is wrong, and of what is compared with known names, none of
# which is nearly as long.
_LONGEST_NAME = 100


def field_problems(
    error: ValidationError, model: type[BaseModel] | None = None
) -> list[FieldProblem]:
    """Translate pydantic's report into one `FieldProblem` for each field that is wrong.

    `model` is what was validated; with it a key that is not known is compared with those that are.
    """
    return translate(error.errors(include_url=False), model)


def translate(
    details: Iterable[ErrorDetails], model: type[BaseModel] | None = None
) -> list[FieldProblem]:
    """As `field_problems`, of the entries of a report; of very many, of the first ones."""
    problems = [_translate(detail, model) for detail in islice(details, MOST_PROBLEMS)]
    # A field that takes a number, a list or "auto" fails once as each; a person made one mistake.
    by_field: dict[str, list[FieldProblem]] = {}
    for problem in problems:
        by_field.setdefault(problem.field, []).append(problem)
    merged = []
    for field, same in by_field.items():
        if any(other.startswith(f"{field}.") for other in by_field):
            continue  # it had the form of one of them, and something within is wrong
        same.sort(key=lambda problem: problem.expected == _AUTO)
        choices = dict.fromkeys(problem.expected for problem in same)
        merged.append(replace(same[0], expected=", or ".join(choices)))
    return merged


def closest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shorten_name(key: object) -> str:
    """A key as it stands in the name of a field: in one line, and cut as `shorten` cuts values."""
    text = repr(str(key)[: _LONGEST_NAME + 1])[1:-1]
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 3] + "..."


def _translate(detail: ErrorDetails, model: type[BaseModel] | None) -> FieldProblem:
    # A discriminated or `T | "auto"` union puts the branch it tried into the path; a person never
    # wrote that, so such parts are left out. An unknown key may have any name, and is the last part.
    kept = detail["loc"][-1:] if detail["type"] == "extra_forbidden" else ()
    whole = detail["loc"][: len(detail["loc"]) - len(kept)]
    path = whole
    if path[:1] == ("method",) and path[1:2] and path[1] in METHODS:
        path = path[:1] + path[2:]  # the name that chose the settings
    # A key of a mapping may hold anything, and as much as a body has room for.
    parts = (*(part for part in path if not _is_branch(part)), *kept)
    field = ".".join(map(shorten_name, parts)) or "(the whole spec)"
    context = detail.get("ctx", {})
    given = shorten(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            near = closest(str(kept[0]), _known_keys(model, whole))
            if not near and model is not None:
                places = [path for path in _paths(model) if path.endswith(f".{kept[0]}")]
                near = f"; did you mean {places[0]!r}?" if places else ""
            return FieldProblem(field, f"is not a known key{near}", given, "no such key")
        case "missing":
            return FieldProblem(field, "is required", "nothing", "a value")
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
            named = kind in _OF_SETTINGS and "name" in _known_keys(model, whole)
            if named and isinstance(detail["input"], str):  # `backbone: resnet18`
                name = _nearest_name(detail["input"], model, whole)
                expected += f", such as {{name: {shorten(name)[1:-1]}}}"
            return FieldProblem(field, "is not valid", given, expected)


def _expected(kind: str, context: Mapping[str, Any]) -> str | None:
    """What would do where pydantic reports an error of this kind; None: its own words say it."""
    form = _FORMS.get(kind.removesuffix("_type").removesuffix("_parsing"))
    if form is not None:
        return form
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return _PATTERNS.get(pattern, f"a text of the pattern {pattern}")
    if kind in _LENGTHS:
        bound, one, many = _LENGTHS[kind]
        count = context["min_length" if bound == "at least" else "max_length"]
        return f"{bound} {count} {one if count == 1 else many}"
    if kind == "value_error":
        return str(context["error"])
    return None


def _known_keys(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[str]:
    """The fields at a path of a report, which may name branches of unions, too."""
    return [name for known in _models_at(model, path) for name in known.model_fields]


def _nearest_name(given: str, model: type[BaseModel] | None, path: Iterable[int | str]) -> str:
    """What was given as a `name`, or the choice nearest to it where there are choices."""
    choices = [
        str(choice)
        for known in _models_at(model, path)
        if "name" in known.model_fields
        for part in get_args(known.model_fields["name"].annotation)
        for choice in (get_args(part) or [part])
        if choice != "auto"
    ]
    near = difflib.get_close_matches(given[:_LONGEST_NAME], choices, n=1, cutoff=0)
    return near[0] if near else given


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all fields, but for those of methods, of which only one is there."""
    for name, known in model.model_fields.items():
        yield f"{prefix}{name}"
        if name != "method":
            for inner in _models(known.annotation):
                yield from _paths(inner, f"{prefix}{name}.")


def _models_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[type[BaseModel]]:
    """Return the models at a path of a report, of which a union may have several."""
    found = [] if model is None else [model]
    for part in path:
        inner = [
            one
            for known in found
            if part in known.model_fields
            for one in _models(known.model_fields[str(part)].annotation)
        ]
        branches = [one for one in found if one.__name__ == part or METHODS.get(str(part)) is one]
        found = inner or branches or found
    return found


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type is, or is made of."""
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
_PATTERNS = {
    NAME_PATTERN: "a name without slashes, line breaks and other control characters",
    LINE_PATTERN: "a text without line breaks and other control characters",
}
_FORMS = {
    "int": "a whole number",
    "int_from_float": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "settings",
    "model": "settings",
    "model_attributes": "settings",
}
_BRANCHES = {"[key]", "int", "float", "str", "bool", "Clip", "LinearProbe", "FineTune"}


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (
        part in _BRANCHES or part.startswith(("literal[", "tuple[", "function-", "constrained-"))
    )
