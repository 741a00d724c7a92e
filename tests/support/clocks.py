"""Clocks that tests set, for what is removed when it is old (`service.storage.clock`)."""

from collections.abc import Callable
from datetime import datetime

import pytest

from service.db import leases
from service.db.models import Usage
from service.db.session import Database


def agree(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], datetime]) -> None:
    """Let PostgreSQL's clock be this one."""
    monkeypatch.setattr(leases, "current_time", lambda _: clock())


def something_happens(database: Database, at: datetime) -> None:
    """Store that a job ran at a time, so that SQLite's clock can be trusted then."""
    with database.write() as session:
        used = Usage(job_id="job_other", hour=at, tenant="other", account_id="other", tags={})
        used.gpu_seconds = used.cpu_seconds = 0.0
        session.merge(used)
