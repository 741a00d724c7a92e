"""What is wrong with a spec: one problem for each field."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


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
