"""Check of the paths that runs report."""

from __future__ import annotations

from service.api.problems import field_problem
from service.artifacts.storage import is_below


def check_below(uri: str, folder: str, field: str = "uri") -> None:
    """Check that a reported URI is inside the run's own folder.

    Raises:
        Problem: 422 for `field`.
    """
    if not is_below(uri, folder):
        raise field_problem(field, "is not inside the folder of the run", uri, f"{folder}/...")
