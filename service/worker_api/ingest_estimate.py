"""Progress of runs that read all images of a data set, and the time that they still take."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from service.db.models import Run
from service.protocol import IngestProgress
from service.runs import liveness

# The rate follows the last half minute: images differ in size.
_MEMORY_SECONDS = 30.0


class IngestEstimate(BaseModel):
    """The progress of an ingest as it is stored and shown: the last report, and the rate and time left of its phase."""

    images_read: int
    images_total: int
    phase: str | None = None
    images_per_second: float | None = None
    seconds_left: float | None = None

    @classmethod
    def of(cls, stored: dict[str, object] | None) -> IngestEstimate | None:
        """Return the stored progress, if there is any."""
        return None if stored is None else cls.model_validate(stored)

    def reported(self) -> tuple[int, int, str | None]:
        """Return what a worker reported."""
        return self.images_read, self.images_total, self.phase


def next_estimate(
    before: IngestEstimate | None, report: IngestProgress, elapsed: timedelta | None
) -> IngestEstimate:
    """Return the progress after another report.

    Args:
        elapsed: since the report before; None if there was none.
    """
    if before is not None and before.phase != report.phase:
        before = None  # its images took another time
    rate = before.images_per_second if before is not None else None
    seconds = elapsed.total_seconds() if elapsed is not None else 0.0
    read, total = report.images_read, report.images_total
    # Nothing is read while the files are listed.
    if before is not None and seconds > 0 and read >= before.images_read and read > 0:
        now = (read - before.images_read) / seconds
        weight = 1.0 if rate is None else -math.expm1(-seconds / _MEMORY_SECONDS)
        rate = now if rate is None else rate + weight * (now - rate)
    left = round((total - read) / rate, 1) if rate and total else None
    return IngestEstimate(
        images_read=read,
        images_total=total,
        phase=report.phase,
        images_per_second=rate,
        seconds_left=left,
    )


def record_progress(
    run: Run, stored: dict[str, object] | None, reported: IngestProgress | None
) -> dict[str, object] | None:
    """Record a heartbeat of a run, with its progress; return the progress to store.

    Args:
        stored: the progress before.
        reported: None: the heartbeat has no progress.
    """
    now = datetime.now(UTC)
    last_report = run.progress_reported_at or run.heartbeat_at
    liveness.record_heartbeat(run, now)
    if reported is None:
        return stored
    before = IngestEstimate.of(stored)
    # Without reports nothing is known about progress, so a long silence is not a standstill.
    elapsed = now - last_report if last_report is not None else None
    silent = elapsed is None or not timedelta() <= elapsed < liveness.MAX_SILENCE
    if silent or before is None or reported.reported() != before.reported():
        run.progressed_at = now
    run.progress_reported_at = now
    return next_estimate(before, reported, elapsed).model_dump()
