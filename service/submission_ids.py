"""Submission ids of runs in Ray: the id of the owner, the number of the run, and a random part.

Uses only the standard library, because workers also recognize these ids.
"""

import re
import secrets

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base-32 digits, in lower case."""
DIGITS = 26
"""Number of digits of an id."""

_SUBMISSION_PATTERN = re.compile(
    rf"(job|ds|prev|prep|mrun|srch)_[{ALPHABET}]{{{DIGITS}}}-[1-9][0-9]{{0,9}}-[0-9a-f]{{8}}"
)


def new_submission_id(owner: str, number: int) -> str:
    """Return a submission id for an owner's run: a job's attempt, a data set's ingest, or the run of a task.

    After the database was restored from a backup, the random part distinguishes the run from an earlier run with the
    same number that only Ray knows.
    """
    return f"{owner}-{number}-{secrets.token_hex(4)}"


def is_submission_id(value: str) -> bool:
    """Whether `value` has the form of a submission id (the run need not exist)."""
    return _SUBMISSION_PATTERN.fullmatch(value) is not None
