"""What all parts of a spec share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

Auto = Literal["auto"]


class Part(BaseModel):
    """A part of a JobSpec: unknown keys are refused, and a spec never changes once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def shorten(value: Any, limit: int = 80) -> str:
    """`repr(value)`, cut so that a hostile value cannot fill an error body."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def problem(message: str, given: Any, expected: str, field: str = "") -> PydanticCustomError:
    """A validation error that `field_problems` turns into the given sentence.

    `field` names the field where pydantic cannot: in a check that spans several parts.
    """
    return PydanticCustomError(
        "field_problem",
        "{message} (given {given}; expected {expected})",
        {"message": message, "given": shorten(given), "expected": expected, "field": field},
    )
