"""Download the files of previews."""

from __future__ import annotations

from service.api.problems import not_found
from service.api.ranged_file import StoredFile
from service.db.models import Preview
from service.previews.schemas import PreviewFile


def file(preview: Preview, name: str) -> StoredFile:
    """Return a file of a preview.

    Raises:
        Problem: 404.
    """
    entry = next((entry for entry in preview.files if entry["name"] == name), None)
    if entry is None:
        raise not_found("file", name)
    return StoredFile(uri=f"{preview.uri}/{name}", **PreviewFile.of(entry).model_dump())
