"""Helpers for messages."""

import os


def cut(text: str, limit: int = 80) -> str:
    """Cut a text to `limit` characters including a final ellipsis."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(path: str) -> str:
    """Escape bytes that are not UTF-8, and null characters, as ``\\xNN``."""
    return os.fsencode(path).decode(errors="backslashreplace").replace("\0", "\\x00")


def formula_safe(text: str) -> str:
    """Quote a cell of a CSV file that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
