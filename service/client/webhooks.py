# Written by tools.sync_client from aio/webhooks.py; edit that file.
"""Webhooks: addresses that are notified of the events of a tenant, and what was delivered to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from service.client.transport import Transport, path_to
from service.client.waiting import OUTAGE_SECONDS, wait_until
from service.client.webhook_models import Delivery, Webhook, WebhookChanges


class Webhooks:
    """`client.webhooks`. Needs a token with scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        url: str,
        *,
        name: str | None = None,
        events: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
        format: str = "standard",
    ) -> Webhook:
        """Create a webhook. Its secret is returned once, in `.secret`.

        Args:
            url: where messages are sent.
            events: types such as "job.failed", or "*" for all; by default those after which a job does not run any more.
            tags: only events of jobs that have all of these.
            format: "standard", or "slack" for addresses that take Slack's messages.
        """
        body: dict[str, object] = {"url": url, "format": format}
        if name is not None:
            body["name"] = name
        if events is not None:
            body["events"] = list(events)
        if tags is not None:
            body["tags"] = dict(tags)
        return Webhook.model_validate(self._transport.json("POST", path_to("webhooks"), body=body))

    def get(self, webhook_id: str) -> Webhook:
        """Return a webhook, without its secret."""
        return Webhook.model_validate(self._transport.json("GET", path_to("webhooks", webhook_id)))

    def list(self, *, page_size: int = 100) -> Iterator[Webhook]:
        """Iterate over the webhooks of the tenant, newest first, without their secrets."""
        for item in self._transport.pages(path_to("webhooks"), {"limit": page_size}):
            yield Webhook.model_validate(item)

    def set(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Change a webhook. What is not passed stays as it is."""
        path = path_to("webhooks", webhook_id)
        return Webhook.model_validate(self._transport.json("PATCH", path, body=changes))

    def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        self._transport.json("DELETE", path_to("webhooks", webhook_id))

    def rotate(self, webhook_id: str, *, keep_hours: float = 24.0) -> Webhook:
        """Replace the secret, which is returned once, in `.secret`.

        Args:
            keep_hours: for how long messages are also signed with the previous one.
        """
        path, body = path_to("webhooks", webhook_id, "rotate"), {"keep_hours": keep_hours}
        return Webhook.model_validate(self._transport.json("POST", path, body=body))

    def test(self, webhook_id: str) -> Delivery:
        """Send a test message; see `wait` for its result."""
        path = path_to("webhooks", webhook_id, "test")
        return Delivery.model_validate(self._transport.json("POST", path))

    def deliveries(
        self, webhook_id: str, *, state: str | None = None, page_size: int = 100
    ) -> Iterator[Delivery]:
        """Iterate over the messages of a webhook, newest first.

        Args:
            state: only those that are "pending", "succeeded" or "failed".
        """
        path, params = path_to("webhooks", webhook_id, "deliveries"), {"state": state}
        for item in self._transport.pages(path, {**params, "limit": page_size}):
            yield Delivery.model_validate(item)

    def delivery(
        self, webhook_id: str, delivery_id: str, *, patience: float | None = None
    ) -> Delivery:
        """Return a message and its last attempt."""
        path = path_to("webhooks", webhook_id, "deliveries", delivery_id)
        return Delivery.model_validate(self._transport.json("GET", path, patience=patience))

    def wait(
        self, webhook_id: str, delivery_id: str, *, timeout: float | None = 60.0, poll: float = 0.5
    ) -> Delivery:
        """Wait until the first attempt to deliver a message has ended.

        Raises:
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        return wait_until(
            lambda: self.delivery(webhook_id, delivery_id, patience=OUTAGE_SECONDS),
            lambda delivery: delivery.was_attempted,
            timeout=timeout,
            poll=poll,
            name=f"The first attempt of {delivery_id}",
        )

    def redeliver(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a message again, with the same id."""
        path = path_to("webhooks", webhook_id, "deliveries", delivery_id, "redeliver")
        return Delivery.model_validate(self._transport.json("POST", path))
