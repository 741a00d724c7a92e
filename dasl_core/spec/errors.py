"""Errors of a spec, said so that the person who wrote it can mend it."""

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dasl_core.spec.methods import METHODS


@dataclass(frozen=True)
class FieldProblem:
    """One thing wrong with one field.

    Attributes:
        field: dotted path in the spec, e.g. `train.batch_size`.
        message: a sentence that says what is wrong.
        given: the value that was given, shortened.
        expected: what would do.
    """

    field: str
    message: str
    given: str
    expected: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} (given {self.given}; expected {self.expected})"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class SpecError(ValueError):
    """A spec that cannot be run, with one problem for each field that is wrong."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


def field_problems(error: ValidationError) -> list[FieldProblem]:
    """Translate pydantic's report into one `FieldProblem` for each field that is wrong."""
    problems = [_translate(detail) for detail in error.errors(include_url=False)]
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


def shorten(value: Any, limit: int = 80) -> str:
    """`repr(value)`, cut so that a hostile value cannot fill an error body."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def closest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _translate(detail: ErrorDetails) -> FieldProblem:
    # A discriminated or `T | "auto"` union puts the branch it tried into the path; a person never
    # wrote that, so such parts are left out. An unknown key may have any name, and is the last part.
    kept = detail["loc"][-1:] if detail["type"] == "extra_forbidden" else ()
    path = detail["loc"][: len(detail["loc"]) - len(kept)]
    if path[:1] == ("method",) and path[1:2] and path[1] in METHODS:
        path = path[:1] + path[2:]  # the name that chose the settings
    parts = [str(part) for part in (*(p for p in path if not _is_branch(p)), *kept)]
    field = ".".join(parts) or "(the whole spec)"
    context = detail.get("ctx", {})
    given = shorten(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            return FieldProblem(field, "is not a known key", given, "no such key")
        case "missing":
            return FieldProblem(field, "is required", "nothing", "a value")
        case "field_problem":
            return FieldProblem(
                context["field"] or field, context["message"], context["given"], context["expected"]
            )
        case "literal_error":
            return FieldProblem(field, "is not one of the choices", given, context["expected"])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bound = next(
                f"{sign} {context[key]}" for key, sign in _BOUNDS.items() if key in context
            )
            return FieldProblem(field, "is out of range", given, f"a number {bound}")
        case kind:
            expected = _FORMS.get(
                kind.removesuffix("_type").removesuffix("_parsing"), detail["msg"]
            )
            return FieldProblem(field, "is not valid", given, expected)


_AUTO = "'auto'"
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_FORMS = {
    "int": "a whole number",
    "int_from_float": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "settings",
    "model": "settings",
    "model_attributes": "settings",
}
_BRANCHES = {"int", "float", "str", "bool", "Clip", "LinearProbe", "FineTune"}


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and (
        part in _BRANCHES or part.startswith(("literal[", "tuple[", "function-", "constrained-"))
    )
