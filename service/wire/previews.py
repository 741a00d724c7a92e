"""Previews of views."""

from datetime import datetime
from typing import Any

from service.wire.base import Answer, StoredObject


class PreviewFile(Answer):
    """A file of a preview."""

    name: str
    size: int
    sha256: str
    content_type: str


class PreviewSummary(Answer):
    """A preview: queued, running, succeeded or failed."""

    id: str
    dataset_id: str
    dataset_version: int
    state: str
    images: int
    size: int | None
    """Bytes of its files, once it has succeeded."""
    error: StoredObject | None
    created_at: datetime
    finished_at: datetime | None


class PreviewView(PreviewSummary):
    """A preview with its spec, as submitted and resolved, and its files."""

    spec: dict[str, Any]
    resolved: dict[str, Any]
    files: list[PreviewFile]
