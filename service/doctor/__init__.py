"""`dasl doctor`: checks of the installation, the local storage and the server, each with a remedy."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail", "skip"]
MISSING = "does not exist yet; `dasl serve` creates it"


@dataclass(frozen=True)
class Finding:
    """Result of one check; `warn` and `fail` have a remedy."""

    name: str
    state: State
    message: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the JSON object that `dasl doctor --json` prints."""
        return {
            "name": self.name,
            "state": self.state,
            "said": self.message,
            "todo": self.remedy,
        }
