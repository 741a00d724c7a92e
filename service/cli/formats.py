"""Text of values: sizes, durations, numbers, tags, records, and untrusted text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def clean(text: str) -> str:
    """Remove control characters: names and logs are untrusted text and could control the terminal."""
    return "".join(
        char for char in text if char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf"}
    )


def plain(record: BaseModel) -> dict[str, Any]:
    """Convert a record to JSON types, as the API sent it: with fields that only a newer server knows."""
    return record.model_dump(mode="json") | (record.model_extra or {})


def duration(seconds: float | None) -> str:
    """Format a duration: `42 s`, `3 min 07 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds is None:
        return "-"
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 86400} d {total % 86400 // 3600:02d} h"


def size(count: int | None) -> str:
    """Format a number of bytes in powers of 1000: `512 B`, `1.5 MB`."""
    if count is None:
        return "-"
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.95:  # 999,960 bytes are 1.0 MB, not 1000.0 kB
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}"


def tags_text(tags: Mapping[str, str]) -> str:
    """Format tags: `team:vision, stage:test`."""
    return ", ".join(f"{key}:{value}" for key, value in tags.items())


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits; None as a dash."""
    return "-" if value is None else f"{value:.{digits}g}"
