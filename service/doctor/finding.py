"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. `todo` says what a person can do where the state is not `ok`."""

    name: str
    state: State
    said: str
    todo: str = ""
