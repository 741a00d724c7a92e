"""Helpers for messages."""

from collections.abc import Mapping


def cut(text: str, limit: int = 80) -> str:
    """Cut a text to `limit` characters including a final ellipsis."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def formula_safe(text: str) -> str:
    """Quote a cell of a CSV file that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def describe_endings(counts: Mapping[str, int], examples: Mapping[str, str], limit: int = 8) -> str:
    """Describe numbers of files by ending, most frequent first: `3 .psd (a.psd, ...), 1 without an ending (LICENSE)`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = []
    for ending, count in ordered[:limit]:
        example = (
            f" ({examples[ending]}{', ...' if count > 1 else ''})" if ending in examples else ""
        )
        parts.append(f"{count} {ending or 'without an ending'}{example}")
    remaining = sum(count for _, count in ordered[limit:])
    return ", ".join([*parts, f"{remaining} others"] if remaining else parts)
