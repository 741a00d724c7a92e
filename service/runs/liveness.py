"""Liveness of runs: when a process of a run last reported, and how long the run is known to have run.

Liveness and progress are two rules with a time each. `heartbeat_at` is the last heartbeat of any process:
an attempt that Ray does not know is lost after a lease without one. `progressed_at` is the last change of the
reported progress: an attempt hangs if its reports have shown no change for `DASL_HANG_SECONDS`. That rule
also needs `progress_reported_at`, the last report: with the two other times alone, a rank 0 that repeats
the same step would look like one that cannot reach the API while the driver's heartbeats arrive.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from service.db.models import Run

SILENCE = timedelta(minutes=2)
"""After a longer silence it is unknown whether the run ran meanwhile: its machine may have slept, the
network may have been down, or the clock may have been set."""


def record_heartbeat(run: Run, now: datetime) -> None:
    """Record that a process of the run is alive; count the time since the last sign of life as runtime."""
    passed = now - (run.heartbeat_at or run.created_at)
    run.ran_seconds += min(max(passed, timedelta()), SILENCE).total_seconds()
    run.heartbeat_at = now
