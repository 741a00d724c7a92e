"""Views of previews, and downloads of their files."""

import mimetypes
from typing import Any

from service.api.problems import not_found
from service.api.ranged_file import StoredFile
from service.db.models import Preview
from service.wire.previews import PreviewFile, PreviewView


def file(preview: Preview, name: str) -> StoredFile:
    """Return a file of a preview.

    Raises:
        Problem: 404.
    """
    entry = next((entry for entry in preview.files if entry["name"] == name), None)
    if entry is None:
        raise not_found("file", name)
    return StoredFile(uri=f"{preview.uri}/{name}", **_file(entry).model_dump())


def preview_view(preview: Preview) -> PreviewView:
    shown = {name: getattr(preview, name) for name in PreviewView.model_fields if name != "files"}
    return PreviewView(**shown, files=[_file(entry) for entry in preview.files])


def _file(entry: dict[str, Any]) -> PreviewFile:
    guessed, _ = mimetypes.guess_type(entry["name"])
    # No other types are written; set the type, as a browser must not guess it.
    kind = guessed if guessed in ("image/png", "application/json") else None
    return PreviewFile(**entry, content_type=kind or "application/octet-stream")
