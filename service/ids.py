"""Identifiers: a type prefix and a UUIDv7 (RFC 9562) as 26 lowercase Crockford base-32 digits.

They sort by time of creation, so lists can be paged by the primary key.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from uuid_utils import uuid7

from service.submission_ids import ALPHABET as _ALPHABET
from service.submission_ids import DIGITS as _DIGITS

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

_PATTERN = re.compile(rf"({'|'.join(get_args(Prefix))})_([{_ALPHABET}]{{{_DIGITS}}})")
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
    """Return the first and last possible id of a kind with this beginning; None if no id can have it.

    Args:
        beginning: the beginning with or without the prefix.
    """
    digits = beginning.removeprefix(f"{prefix}_")
    if not 0 < len(digits) <= _DIGITS or set(digits) - set(_ALPHABET):
        return None
    first, last = (
        f"{prefix}_{digits.ljust(_DIGITS, fill)}" for fill in (_ALPHABET[0], _ALPHABET[-1])
    )
    return first, last


def created_at(value: str) -> datetime:
    """Return the time at which an id was created, to the millisecond."""
    number = 0
    for digit in value.partition("_")[2]:
        number = number << 5 | _ALPHABET.index(digit)
    return _EPOCH + timedelta(milliseconds=number >> 80)
