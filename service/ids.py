"""Identifiers: a type prefix and a UUIDv7 (RFC 9562) as 26 lowercase Crockford base-32 digits.

They sort by time of creation, so lists are paged by the primary key alone.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from uuid_utils import uuid7

Prefix = Literal[
    "job",
    "ds",
    "prev",
    "prep",
    "mrun",
    "srch",
    "qry",
    "ckpt",
    "tok",
    "usr",
    "eval",
    "aud",
    "whk",
    "msg",
    "exp",
]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS = 26
_PATTERN = re.compile(rf"({'|'.join(get_args(Prefix))})_([{_ALPHABET}]{{{_DIGITS}}})")
_NUMBER = r"[1-9][0-9]{0,9}"
_NUMBER_PATTERN = re.compile(_NUMBER)
# Runs of version 0.1 have no random part.
_SUBMISSION_PATTERN = re.compile(
    rf"(job|ds|prev|prep|mrun|srch)_[{_ALPHABET}]{{26}}-{_NUMBER}(-[0-9a-f]{{8}})?"
)
_MAX_RUN_NUMBER = 2**31 - 1  # of a database's integer
_EPOCH = datetime.fromtimestamp(0, UTC)


def new_id(prefix: Prefix) -> str:
    """Return a new id, greater than all earlier ones of this process."""
    number = uuid7().int
    digits = (_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
    return f"{prefix}_{''.join(digits)}"


def is_id(prefix: Prefix, value: str) -> bool:
    """Whether `value` has the form of an id of this kind (it need not exist)."""
    match = _PATTERN.fullmatch(value)
    return match is not None and match[1] == prefix


def ids_beginning_with(prefix: Prefix, beginning: str) -> tuple[str, str] | None:
    """Return the first and the last possible id of a kind with this beginning; None if there can be none.

    Args:
        beginning: with or without the prefix.
    """
    digits = beginning.removeprefix(f"{prefix}_")
    if not 0 < len(digits) <= _DIGITS or set(digits) - set(_ALPHABET):
        return None
    first, last = (
        f"{prefix}_{digits.ljust(_DIGITS, fill)}" for fill in (_ALPHABET[0], _ALPHABET[-1])
    )
    return first, last


def created_at(value: str) -> datetime:
    """The time at which an id was created, to the millisecond."""
    number = 0
    for digit in value.partition("_")[2]:
        number = number << 5 | _ALPHABET.index(digit)
    return _EPOCH + timedelta(milliseconds=number >> 80)


def new_submission_id(owner: str, number: int) -> str:
    """Return an id at Ray for an owner's run: a job's attempt, a data set's ingest, or the run of a task.

    The random part distinguishes it from a run of the same number that Ray knows and the database does
    not, because the database was restored from a backup.
    """
    return f"{owner}-{number}-{secrets.token_hex(4)}"


def is_submission_id(value: str) -> bool:
    """Whether `value` has the form of a submission id (the run need not exist)."""
    return _SUBMISSION_PATTERN.fullmatch(value) is not None


def parse_run_number(value: str) -> int | None:
    """Return the number of a run; `None` if `value` is not one."""
    if _NUMBER_PATTERN.fullmatch(value) is None or int(value) > _MAX_RUN_NUMBER:
        return None
    return int(value)
