"""Parts of messages."""

from collections.abc import Mapping


def cut(text: str, limit: int = 80) -> str:
    """Return the text, cut to `limit` characters of which the last three are then dots."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe_endings(counts: Mapping[str, int], limit: int = 8) -> str:
    """Describe numbers of files by their endings, the most frequent first: `3 .psd, 2 .mp4, 1 without an ending`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count} {ending or 'without an ending'}" for ending, count in ordered[:limit]]
    left = sum(count for _, count in ordered[limit:])
    return ", ".join([*shown, f"{left} others"] if left else shown)
