"""Length of texts in messages."""


def cut(text: str, limit: int = 80) -> str:
    """Return the text, cut to `limit` characters of which the last three are then dots."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
