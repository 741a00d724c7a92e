"""Descriptions of invalid spec fields."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FieldProblem:
    """One invalid field and how to correct it.

    Attributes:
        field: dotted path in the spec, e.g. `train.batch_size`.
        message: the problem, as a phrase that follows `field: `.
        given: the invalid value, shortened; "" if there is none.
        expected: a description of valid values; "" if `message` contains the remedy.
    """

    field: str
    message: str
    given: str = ""
    expected: str = ""

    def __str__(self) -> str:
        details = (("given", self.given), ("expected", self.expected))
        extras = "; ".join(f"{name} {value}" for name, value in details if value)
        return f"{self.field}: {self.message}" + (f" ({extras})" if extras else "")

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class Problems(list[FieldProblem]):
    """Problems of a spec, in order of detection."""

    def add(self, field: str, message: str, given: str = "", expected: str = "") -> None:
        """Add a problem; see `FieldProblem`."""
        self.append(FieldProblem(field, message, given, expected))

    def add_no_effect(self, field: str, given: Any, cause: str, instead: str) -> None:
        """Add that a setting has no effect because of another one."""
        message = f"has no effect with {cause}; remove it or set {instead}"
        self.add(field, message, "" if given is None else str(given))


class SpecError(ValueError):
    """Raised for a spec that cannot run, with one problem per invalid field."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))
