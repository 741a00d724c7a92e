"""Show, download and delete previews."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import ids
from service.api.auth import Caller
from service.api.problems import Problem, not_found
from service.api.ranged_file import StoredFile
from service.db.models import Preview
from service.previews import repository
from service.previews.schemas import PreviewFile

# Each may read 64 images from a slow disk, and previews of one tenant run one after another.
MAX_PENDING = 8


def get(session: Session, tenant: str, preview_id: str) -> Preview:
    """Return a tenant's preview.

    Raises:
        Problem: 404.
    """
    preview = repository.get(session, tenant, preview_id) if ids.is_id("prev", preview_id) else None
    if preview is None:
        raise not_found("preview", preview_id)
    return preview


def check_pending(session: Session, caller: Caller) -> None:
    """Check that a caller's token may have another preview that is queued or running.

    Raises:
        Problem: 429.
    """
    used = repository.count_pending(session, caller.token_id)
    if used >= MAX_PENDING:
        raise Problem(
            429,
            "quota-exceeded",
            f"{used} previews of this token are queued or running, which is the limit; try again when one has ended",
            extra={"quota": "pending_previews", "limit": MAX_PENDING, "used": used},
        )


def file(preview: Preview, name: str) -> StoredFile:
    """Return a file of a preview.

    Raises:
        Problem: 404.
    """
    entry = next((entry for entry in preview.files if entry["name"] == name), None)
    if entry is None:
        raise not_found("file", name)
    return StoredFile(uri=f"{preview.uri}/{name}", **PreviewFile.of(entry).model_dump())


def delete(session: Session, preview: Preview) -> None:
    """Delete a preview, also one that is being drawn.

    Raises:
        Problem: 404, it was deleted in between.
    """
    locked = repository.lock(session, preview.id)
    if locked is None:
        raise not_found("preview", preview.id)
    locked.deleted_at = datetime.now(UTC)
