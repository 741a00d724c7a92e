"""`dasl doctor`: checks of the installation, the local storage and the server, each with a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """Result of one check; its fields are those of `dasl doctor --json`.

    `todo` is the remedy and must be set for `warn` and `fail`.
    """

    name: str
    state: State
    said: str
    todo: str = ""
