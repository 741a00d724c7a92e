"""Record when tokens were last used, to the minute, after the response was sent.

No request waits for it. A power failure or an unreachable database may lose a record; the next use adds one.
"""

import logging
import threading
from datetime import UTC, datetime, timedelta

from service.api import repository
from service.db.session import AWAY, Database, first_line

logger = logging.getLogger(__name__)
_RESOLUTION = timedelta(minutes=1)
_MAX_TOKENS = 10_000


class LastUse:
    """Selects the uses to record: one per token and minute in this process."""

    def __init__(self) -> None:
        self._recorded_at: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def is_due(self, token_id: str, stored: datetime | None, now: datetime) -> bool:
        """Whether to record this use; another process may have stored a recent one."""
        if stored is not None and now - stored < _RESOLUTION:
            return False
        with self._lock:
            recorded_at = self._recorded_at.get(token_id)
            if recorded_at is not None and timedelta() <= now - recorded_at < _RESOLUTION:
                return False
            if len(self._recorded_at) >= _MAX_TOKENS:
                self._recorded_at.clear()
            self._recorded_at[token_id] = now
            return True


def record(database: Database, token_id: str) -> None:
    """Record a use at the current time."""
    try:
        with database.writer(relaxed_durability=True) as session, session.begin():
            repository.record_use(session, token_id, datetime.now(UTC), _RESOLUTION)
    except AWAY as error:
        logger.warning("The last use of %s is not recorded: %s", token_id, first_line(error))
