"""Options that set a limit: a number, or `none` for no limit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer


def _option(
    help: str,
    metavar: str = "N|none",
    is_valid: Callable[[str], object] = re.compile("[0-9]{1,9}").fullmatch,
    expected: str = "a whole number",
) -> Any:
    def check(value: str | None) -> str | None:
        if value is not None and value != "none" and not is_valid(value):
            raise typer.BadParameter(
                f"{value!r} is not a limit; expected {expected}, or none for no limit"
            )
        return value

    return typer.Option(metavar=metavar, callback=check, help=help)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


MaxQueuedJobs = Annotated[str | None, _option("Maximum number of queued jobs.")]
MaxRunningJobs = Annotated[str | None, _option("Maximum number of running jobs.")]
MaxGpus = Annotated[str | None, _option("Maximum number of GPUs in use.")]
MaxPendingDatasets = Annotated[
    str | None, _option("Maximum number of data sets whose images are not all read.")
]
MaxPriority = Annotated[
    str | None, _option("Highest priority of a job.", is_valid=re.compile("-?[0-9]{1,9}").fullmatch)
]
MaxHours = Annotated[
    str | None, _option("Highest time limit of a job, in hours.", "H|none", _is_number, "a number")
]
ExpiresInDays = Annotated[
    str | None,
    _option("Days from now after which the token is refused.", "DAYS|none", _is_number, "a number"),
]


def limits(names: Sequence[str], values: Sequence[str | None]) -> dict[str, Any]:
    """Convert the checked values of the options that were set: `none`, no limit, is None."""
    options = zip(names, values, strict=True)
    return {name: _limit(value) for name, value in options if value is not None}


def _limit(value: str) -> float | None:
    if value == "none":
        return None
    return int(value) if re.fullmatch("-?[0-9]+", value) else float(value)
