"""Options that set a limit: a number, or `none` for no limit."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import typer


def _checked(value: str | None) -> str | None:
    """Check the value of an option for a whole number.

    Raises:
        typer.BadParameter: it is neither a whole number nor `none`.
    """
    if value is not None and value != "none" and not re.fullmatch("[0-9]{1,9}", value):
        raise typer.BadParameter(
            f"{value!r} is not a limit; expected a whole number, or none for no limit"
        )
    return value


def _checked_priority(value: str | None) -> str | None:
    """Check the value of an option for a whole number, which may be negative.

    Raises:
        typer.BadParameter: it is neither a whole number nor `none`.
    """
    _checked(None if value is None else value.removeprefix("-"))
    return value


def _checked_number(value: str | None) -> str | None:
    """Check the value of an option for a number, which may have a fraction.

    Raises:
        typer.BadParameter: it is neither a number nor `none`.
    """
    if value is None or value == "none":
        return value
    try:
        if math.isfinite(float(value)):
            return value
    except ValueError:
        pass
    raise typer.BadParameter(f"{value!r} is not a limit; expected a number, or none for no limit")


MaxQueuedJobs = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_checked, help="Maximum number of queued jobs."),
]
MaxRunningJobs = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_checked, help="Maximum number of running jobs."),
]
MaxGpus = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_checked, help="Maximum number of GPUs in use."),
]
MaxPendingDatasets = Annotated[
    str | None,
    typer.Option(
        metavar="N|none",
        callback=_checked,
        help="Maximum number of data sets whose images are not all read.",
    ),
]
MaxPriority = Annotated[
    str | None,
    typer.Option(metavar="N|none", callback=_checked_priority, help="Highest priority of a job."),
]
MaxHours = Annotated[
    str | None,
    typer.Option(
        metavar="H|none", callback=_checked_number, help="Highest time limit of a job, in hours."
    ),
]
ExpiresInDays = Annotated[
    str | None,
    typer.Option(
        metavar="DAYS|none",
        callback=_checked_number,
        help="Days from now after which the token is refused.",
    ),
]


def limits(**options: str | None) -> dict[str, Any]:
    """Convert the checked values of the options that were set: `none`, no limit, is None."""
    return {name: _limit(value) for name, value in options.items() if value is not None}


def _limit(value: str) -> float | None:
    if value == "none":
        return None
    return int(value) if re.fullmatch("-?[0-9]+", value) else float(value)
