"""Preparations of data sets."""

from datetime import datetime
from typing import Any

from service.wire.base import Answer, StoredObject


class PreparationView(Answer):
    """A preparation: queued, running, succeeded or failed.

    While it runs, `progress` has `images_read`, `images_total` and the estimated `seconds_left`. `result` has the number of
    `cached` images of `images`.
    """

    id: str
    dataset_id: str
    dataset_version: int
    image_size: int
    channels: int
    image_cache: str
    state: str
    progress: StoredObject | None
    result: dict[str, Any] | None
    error: StoredObject | None
    created_at: datetime
    finished_at: datetime | None
