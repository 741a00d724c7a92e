"""Helpers for messages."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_LINE = re.compile(r" \(line \d+ of the list\)$")


def cut(text: str, limit: int = 80) -> str:
    """Cut a text to `limit` characters including a final ellipsis."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(path: str) -> str:
    """Escape bytes that are not UTF-8, and null characters, as ``\\xNN``."""
    return os.fsencode(path).decode(errors="backslashreplace").replace("\0", "\\x00")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural ends in s: "1 epoch", "2,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def at_line(reason: str, line: int) -> str:
    """Return the reason of a row of a list with its line."""
    return f"{reason} (line {line} of the list)"


def without_line(reason: str) -> str:
    """Return a reason that is the same for all rows of a list."""
    return _LINE.sub("", reason)


def formula_safe(text: str) -> str:
    """Quote a cell of a CSV file that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def describe_duplicates(duplicates: Mapping[str, Any]) -> Iterator[str]:
    """Say of a report (`DatasetIndex.duplicates`) how many images are more than needed, with an example."""
    superfluous = 0  # equal images are also similar
    for kind in ("equal", "similar"):
        groups = duplicates.get(kind) or {}
        if groups.get("superfluous", 0) > superfluous:
            superfluous = groups["superfluous"]
            example = " and ".join(groups["examples"][0][:2])
            yield f"{kind.capitalize()} images: {superfluous:,} more than needed, such as {example}."
