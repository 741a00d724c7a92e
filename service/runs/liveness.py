"""Liveness of runs: the last heartbeat and the confirmed runtime.

Two rules use the reports of a run:

* Lost: Ray does not know the attempt, and a lease has passed since `heartbeat_at`, the last heartbeat of
  any of its processes.
* Hanging: `DASL_HANG_SECONDS` lie between `progressed_at`, the last change of the reported progress, and
  `progress_reported_at`, the last report of progress (before the first one: `heartbeat_at`). If rank 0
  cannot reach the API, neither time changes although the driver's heartbeats arrive, so the attempt does
  not count as hanging.
"""

from datetime import datetime, timedelta

from service.db.models import Run

MAX_SILENCE = timedelta(minutes=2)
"""Longest gap between heartbeats that counts as runtime. During a longer gap the machine may have slept, the
network may have been down, or the clock may have been set."""


def record_heartbeat(run: Run, now: datetime) -> None:
    """Record a heartbeat and count the time since the previous one as runtime."""
    elapsed = now - (run.heartbeat_at or run.created_at)
    run.ran_seconds += min(max(elapsed, timedelta()), MAX_SILENCE).total_seconds()
    run.heartbeat_at = now
