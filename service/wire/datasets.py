"""Data sets, their uploads and versions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from service.wire.base import Answer, StoredObject


class UploadView(Answer):
    """A file of images; the first `received` of its `size` bytes are stored."""

    filename: str
    size: int
    received: int
    sha256: str | None
    fingerprint: str | None


class RefreshView(Answer):
    """A refresh that is pending, ingesting or failed; the newest version stays in use."""

    state: str
    error: StoredObject | None
    requested_at: datetime | None


_FLAGS = {
    "split": "--split",
    "classes": "--classes",
    "labels": "--no-labels",
    "links": "--follow-links",
    "image_column": "--image-column",
    "label_column": "--label-column",
    "group_column": "--group-column",
}
"""Options of `dasl datasets add` by their fields of `source`."""


def remedy(dataset_id: str, source: Mapping[str, Any] | None, *, is_upload: bool) -> str:
    """Say what can be done with a data set that could not be ingested.

    Args:
        source: its options, of which each may be the cause.
    """
    remove, refresh = (f"dasl datasets {verb} {dataset_id}" for verb in ("rm", "refresh"))
    flags = " or ".join(flag for field, flag in _FLAGS.items() if field in (source or {}))
    if is_upload:
        change = f"; if {flags} is wrong, with another" if flags else ""
        return f"What was uploaded cannot be changed: remove it ({remove}), and upload it again{change}"
    if flags:
        return (
            f"If {flags} is wrong, remove it ({remove}) and add it again with another; or once its files are in order, "
            f"read it again ({refresh})"
        )
    return f"Remove it to reuse the name ({remove}), or once its files are in order, read it again ({refresh})"


class DatasetState(Answer):
    """A data set: uploading, pending, ingesting, ready or failed.

    While it is ingested, `progress` has the `phase`, and its `images_read`, `images_total` and estimated `seconds_left`.
    """

    id: str
    name: str
    uri: str
    state: str
    version: int
    """The newest version, which `facts` and the report describe."""
    refresh: RefreshView | None
    facts: dict[str, Any] | None
    error: StoredObject | None
    progress: StoredObject | None
    upload: UploadView | None
    created_at: datetime


class DatasetSummary(DatasetState):
    """A data set of a list."""

    num_skipped: int | None = None


class DatasetView(DatasetState):
    """A data set with the options of its `source`, and its `report`: what was skipped and why."""

    source: dict[str, Any] | None
    report: StoredObject | None


class Changes(Answer):
    """Numbers of images that differ from the previous version."""

    added: int
    removed: int
    changed: int
    unchanged: int
    relabeled: int
    """Images in both versions that have another class."""


class VersionView(Answer):
    """A version of a data set; jobs cannot choose one that is `removed`."""

    number: int
    created_at: datetime
    facts: dict[str, Any]
    changes: Changes | None
    """Null for the first version, and if the previous version was not available."""
    removed: bool
