"""Delivery of the messages of webhooks, in a separate loop.

Each request runs in a thread, at most one for each webhook and a bounded number in all, so that a slow receiver delays
only its own messages. No request is made inside a transaction, and none by the loop itself.
"""

import logging
import threading
import time
from collections import Counter
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from service import ids
from service.api import repository as api
from service.db.models import Webhook
from service.db.models import WebhookDelivery as WebhookMessage
from service.dispatcher.context import DispatcherContext
from service.dispatcher.isolation import show_progress
from service.outbox import messages
from service.outbox import repository as outbox
from service.outbox.addresses import AddressGuard
from service.outbox.retries import MAX_ATTEMPTS, Outcome
from service.outbox.sender import Sender

logger = logging.getLogger(__name__)

MAX_REQUESTS, MAX_REQUESTS_OF_TENANT = 32, 8
"""Number of concurrent requests, in total and per tenant."""
_ROUND_SECONDS = 1.0
_POLL_SECONDS = 0.1
_UNKNOWN = Outcome(None, "the dispatcher ended during the last attempt, whose result is unknown")
# In place of a token in the audit log.
_ACTOR = "dispatcher"


class Sends(Protocol):
    """Makes a request: `Sender`."""

    def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> Outcome: ...


class WebhookDelivery:
    """Sends the messages of the outbox, and records how each attempt ended.

    Args:
        sender: makes the requests; by default over the network.
    """

    def __init__(self, context: DispatcherContext, sender: Sends | None = None) -> None:
        self._context = context
        allowed = context.settings.webhook_allowed_hosts
        self._sender: Sends = sender or Sender(AddressGuard(allowed))
        self._sending: dict[str, str] = {}
        """The webhooks with a pending request, and their tenants."""
        self._ended: SimpleQueue[tuple[WebhookMessage, Outcome]] = SimpleQueue()
        self._unrecorded: list[tuple[WebhookMessage, Outcome]] = []
        """Attempts whose requests have ended, kept until the database has stored them."""

    def round(self) -> bool:
        """Send due messages for about a second; return `False` if this dispatcher is not in charge."""
        if not self._context.in_charge:
            return False
        deadline = time.monotonic() + _ROUND_SECONDS
        while True:
            self._record_ended()
            self._start_due()
            if not self._sending or time.monotonic() >= deadline:
                return True
            show_progress()
            with suppress(Empty):
                self._unrecorded.append(self._ended.get(timeout=_POLL_SECONDS))

    def _start_due(self) -> None:
        now = self._context.clock()
        with self._context.database.read() as session:
            due = outbox.due(session, now, self._sending)
        of_tenant = Counter(self._sending.values())
        for message, webhook in due:
            if len(self._sending) >= MAX_REQUESTS:
                return
            if of_tenant[message.tenant] >= MAX_REQUESTS_OF_TENANT:
                continue
            if message.attempts >= MAX_ATTEMPTS:
                self._record(message, message.attempts, _UNKNOWN)
                continue
            with self._context.write() as session:
                claimed = outbox.claim(session, message, now)
            if claimed:
                of_tenant[message.tenant] += 1
                secrets = outbox.valid_secrets(webhook, now)
                # A daemon: a slow receiver must not hold up the end of the process.
                threading.Thread(
                    target=self._send, args=(message, webhook, secrets), name="webhook", daemon=True
                ).start()
                self._sending[webhook.id] = message.tenant

    def _send(self, message: WebhookMessage, webhook: Webhook, secrets: list[str]) -> None:
        try:
            body = messages.body(message.message, webhook.format, self._context.settings.public_url)
            outcome = self._sender.send(webhook.url, message.id, body, secrets)
        except Exception:  # otherwise the webhook would count as busy until the dispatcher restarts
            logger.exception("delivery %s of webhook %s", message.id, webhook.id)
            outcome = Outcome(None, "the dispatcher failed to send it; see its log")
        self._ended.put((message, outcome))

    def _record_ended(self) -> None:
        while not self._ended.empty():
            self._unrecorded.append(self._ended.get())
        while self._unrecorded:
            message, outcome = self._unrecorded[0]
            self._record(message, message.attempts + 1, outcome)
            del self._unrecorded[0]
            self._sending.pop(message.webhook_id, None)

    def _record(self, message: WebhookMessage, attempts: int, outcome: Outcome) -> None:
        now = self._context.clock()
        with self._context.write() as session:
            reason = outbox.record(session, message.id, attempts, outcome, now)
            if reason is not None:
                row = {
                    "id": ids.new_id("aud"),
                    "at": now,
                    "tenant": message.tenant,
                    "token_id": _ACTOR,
                    "user_id": None,
                    "method": "DISABLE",
                    "path": f"/v1/webhooks/{message.webhook_id}",
                    "status": outcome.status or 0,
                    "address": None,
                }
                api.add_audit_entry(session, row)
        if reason is not None:
            logger.warning("The webhook %s is disabled: %s", message.webhook_id, reason)
