"""Ids of runs at Ray: the id of the owner, the number of the run, and a random part.

Uses the standard library only, as workers recognize these ids, too.
"""

from __future__ import annotations

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
    """Return an id at Ray for an owner's run: a job's attempt, a data set's ingest, or the run of a task.

    The random part distinguishes it from a run of the same number that Ray knows and the database does
    not, because the database was restored from a backup.
    """
    return f"{owner}-{number}-{secrets.token_hex(4)}"


def is_submission_id(value: str) -> bool:
    """Whether `value` has the form of a submission id (the run need not exist)."""
    return _SUBMISSION_PATTERN.fullmatch(value) is not None
