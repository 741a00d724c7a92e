"""Helpers for messages."""

from collections.abc import Mapping


def cut(text: str, limit: int = 80) -> str:
    """Cut a text to `limit` characters including a final ellipsis."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def formula_safe(text: str) -> str:
    """Quote a cell of a CSV file that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def describe_endings(counts: Mapping[str, int], limit: int = 8) -> str:
    """Describe numbers of files by ending, most frequent first: `3 .psd, 2 .mp4, 1 without an ending`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {ending or 'without an ending'}" for ending, count in ordered[:limit]]
    remaining = sum(count for _, count in ordered[limit:])
    return ", ".join([*parts, f"{remaining} others"] if remaining else parts)
