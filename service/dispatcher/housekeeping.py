"""Upkeep of the database: remove unneeded rows and number events."""

from datetime import datetime, timedelta

from service.dispatcher.context import DispatcherContext, passed
from service.events import repository as events
from service.ledger import repository as ledger
from service.outbox import repository as outbox
from service.scheduling.window import FORGOTTEN
from service.storage import repository as storage
from service.storage.clock import removal_time
from service.tasks.questions import repository as questions
from service.tokens import repository as tokens

KEEP_USE = timedelta(days=3 * 366)
"""How long use of the cluster is kept; longer if the half-life of the fair share needs it."""
KEEP_LOGIN_TOKENS = timedelta(days=90)
"""How long tokens of logins are kept after their expiry."""
KEEP_ANSWERS = timedelta(days=90)
"""How long answers to requests with an Idempotency-Key are kept."""
KEEP_DELIVERIES = timedelta(days=7)
"""How long deliveries of webhooks are kept after their end."""
_EVERY = timedelta(minutes=5)
# Bounds the duration of a transaction, during which other writers wait.
_ROWS_AT_ONCE = 5000


class Housekeeping:
    """Removes rows in batches."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._done_at: datetime | None = None

    def round(self) -> None:
        """Process a batch of each kind of row; if no batch is full, wait some minutes before the next ones."""
        now = self._context.clock()
        if not passed(self._done_at, now, _EVERY):
            return
        with self._context.database.read() as session:
            time = removal_time(session, now)
        if time is None:
            self._done_at = now
            return
        keep_use = max(KEEP_USE, FORGOTTEN * self._context.settings.fair_share_half_life)
        with self._context.write() as session:
            # A request for events after days must not have to number them first.
            events.assign_positions(session)
        counts = []
        for remove, keep in (
            (ledger.remove_before, keep_use),
            (tokens.remove_expired_logins, KEEP_LOGIN_TOKENS),
            (storage.remove_answers, KEEP_ANSWERS),
            (outbox.remove_old, KEEP_DELIVERIES),
        ):
            with self._context.write() as session:
                counts.append(remove(session, time - keep, _ROWS_AT_ONCE))
        with self._context.write() as session:
            questions.remove_older(session, time - questions.ABANDONED)
        if max(counts) < _ROWS_AT_ONCE:
            self._done_at = now
