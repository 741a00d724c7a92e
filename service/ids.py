"""Identifiers: a type prefix and a UUIDv7 (RFC 9562) as 26 lowercase Crockford base-32 digits.

They sort by time of creation, so lists page over the primary key alone.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Literal

Prefix = Literal["job", "ds", "ckpt", "tok", "eval", "aud"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PATTERN = re.compile(rf"(job|ds|ckpt|tok|eval|aud)_([{_ALPHABET}]{{26}})")
_EPOCH = datetime.fromtimestamp(0, UTC)
_lock = threading.Lock()
_last_tick = 0


def new_id(prefix: Prefix) -> str:
    """A fresh id; within one process each is greater than the one before."""
    return f"{prefix}_{_base32(_uuid7())}"


def is_id(prefix: Prefix, value: str) -> bool:
    """Whether `value` has the form of an id of this kind (it need not exist)."""
    match = _PATTERN.fullmatch(value)
    return match is not None and match[1] == prefix


def made_at(value: str) -> datetime:
    """When an id of ours was made, to the millisecond."""
    number = 0
    for digit in value.partition("_")[2]:
        number = number << 5 | _ALPHABET.index(digit)
    return _EPOCH + timedelta(milliseconds=number >> 80)


def _uuid7() -> int:
    """48 bits of milliseconds, then 12 bits of sub-millisecond clock (RFC 9562, method 3)."""
    global _last_tick
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    tick = (milliseconds << 12) | (rest * 4096 // 1_000_000)
    with _lock:
        tick = _last_tick = max(tick, _last_tick + 1)
    version, variant = 0x7, 0b10
    return (
        (tick >> 12) << 80
        | version << 76
        | (tick & 0xFFF) << 64
        | variant << 62
        | secrets.randbits(62)
    )


def _base32(number: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
