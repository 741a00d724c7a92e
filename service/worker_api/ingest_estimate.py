"""Progress and remaining time of runs that read all images of a data set."""

import math
from datetime import UTC, datetime, timedelta

from service.api.problems import validated
from service.db.models import Run
from service.protocol import IngestProgress
from service.runs import liveness

# The rate is averaged over the last half minute, because images differ in size.
_MEMORY_SECONDS = 30.0


class IngestEstimate(IngestProgress):
    """The stored progress of an ingest: the last report, and the rate and remaining time of its phase."""

    images_per_second: float | None = None
    seconds_left: float | None = None


def next_estimate(
    before: IngestEstimate | None, report: IngestProgress, elapsed: timedelta | None
) -> IngestEstimate:
    """Return the progress after another report.

    Args:
        elapsed: time since the previous report; None if there was none.
    """
    if before is not None and before.phase != report.phase:
        before = None  # another phase has another rate
    rate = before.images_per_second if before is not None else None
    seconds = elapsed.total_seconds() if elapsed is not None else 0.0
    read, total = report.images_read, report.images_total
    # No image is read while the files are listed.
    if before is not None and seconds > 0 and read >= before.images_read and read > 0:
        now = (read - before.images_read) / seconds
        weight = 1.0 if rate is None else -math.expm1(-seconds / _MEMORY_SECONDS)
        rate = now if rate is None else rate + weight * (now - rate)
    seconds_left = round((total - read) / rate, 1) if rate and total else None
    return IngestEstimate(**dict(report), images_per_second=rate, seconds_left=seconds_left)


def record_progress(
    run: Run, stored: dict[str, object] | None, progress: dict[str, object]
) -> dict[str, object] | None:
    """Record a heartbeat of a run, with its progress; return the progress to store.

    Args:
        stored: the previous progress.
        progress: the reported `IngestProgress`; empty: the heartbeat has none.

    Raises:
        Problem: 422, the progress is not one.
    """
    reported = validated(progress, IngestProgress) if progress else None
    now = datetime.now(UTC)
    last_report = run.progress_reported_at or run.heartbeat_at
    liveness.record_heartbeat(run, now)
    if reported is None:
        return stored
    before = None if stored is None else IngestEstimate.model_validate(stored)
    # A long time without reports is not a standstill, because the progress is unknown.
    elapsed = now - last_report if last_report is not None else None
    silent = elapsed is None or not timedelta() <= elapsed < liveness.MAX_SILENCE
    if silent or before is None or reported.reported() != before.reported():
        run.progressed_at = now
    run.progress_reported_at = now
    return next_estimate(before, reported, elapsed).model_dump()
