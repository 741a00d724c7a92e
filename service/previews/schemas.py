"""Request and response models of previews."""

from __future__ import annotations

import mimetypes
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from service.db.models import Preview

MOST_IMAGES = 64


class PreviewRequest(BaseModel):
    """Views to draw: those of the first images of a training by this spec."""

    model_config = ConfigDict(extra="forbid")

    spec: Annotated[
        dict[str, Any],
        Field(
            description="The spec of a job, or the parts of it that matter: `method`, `augment`, `backbone`, `train`. "
            "`dataset` is that of the path."
        ),
    ]
    images: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 8
    version: Annotated[
        int | None, Field(ge=1, le=999_999_999, description="Of the data set; null: the newest.")
    ] = None


class PreviewFile(BaseModel):
    """A file of a preview."""

    name: str
    size: int
    sha256: str
    content_type: str

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Self:
        """Build the view of an entry of `Preview.files`."""
        guessed, _ = mimetypes.guess_type(entry["name"])
        # Nothing else is ever written; a browser must not guess.
        kind = guessed if guessed in ("image/png", "application/json") else None
        return cls(**entry, content_type=kind or "application/octet-stream")


class PreviewSummary(BaseModel):
    """A preview: queued, running, succeeded or failed."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    dataset_id: str
    dataset_version: int | None
    """Null only if a release without versions of previews accepted it, until it is drawn."""
    state: str
    images: int
    size: int | None
    """Bytes of its files, once it has succeeded."""
    error: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None


class PreviewView(PreviewSummary):
    """A preview with its spec, as submitted and resolved, and its files."""

    spec: dict[str, Any]
    resolved: dict[str, Any]
    files: list[PreviewFile]

    @classmethod
    def of(cls, preview: Preview) -> Self:
        """Build the view of a row."""
        shown = {name: getattr(preview, name) for name in cls.model_fields if name != "files"}
        return cls(**shown, files=[PreviewFile.of(entry) for entry in preview.files])
