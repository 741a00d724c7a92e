"""Fencing of runs: only an owner's newest run, with its own token, may report, and only files of its own folder."""

from typing import TypeVar

from sqlalchemy.orm import Session

from service import credentials
from service.api.problems import field_problem
from service.artifacts.storage import is_below
from service.db.models import Run
from service.runs import repository as runs
from service.states import StaleAttempt

R = TypeVar("R", bound=Run)


def newest_run(session: Session, kind: type[R], owner: str, number: int, token: str) -> R:
    """Return the newest run of a locked owner.

    The token was already checked, but without the lock.

    Raises:
        StaleAttempt: the run was superseded, or got another token.
    """
    run = runs.newest(session, kind, owner)
    if run is None or run.number != number or not credentials.token_matches(token, run.token_hash):
        raise StaleAttempt(f"the run of {owner} was superseded")
    return run


def check_below(uri: str, folder: str, field: str = "uri") -> None:
    """Check that a reported URI is inside the run's own folder.

    Raises:
        Problem: 422 for `field`.
    """
    if not is_below(uri, folder):
        raise field_problem(field, "is not inside the folder of the run", uri, f"{folder}/...")
