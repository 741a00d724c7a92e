"""Webhooks: addresses that are notified of a tenant's events, and their deliveries."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypedDict, Unpack

from service.client.aio.transport import AsyncResource, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, wait_until
from service.wire.webhooks import DeliveryView, NewSecret, WebhookView


class WebhookChanges(TypedDict, total=False):
    """Changes of a webhook."""

    url: str
    name: str
    events: Sequence[str]
    tags: Mapping[str, str]
    format: str
    disabled: bool


class AsyncWebhooks(AsyncResource):
    """`client.webhooks`. Needs a token with scope `admin`."""

    async def create(
        self,
        url: str,
        *,
        name: str | None = None,
        events: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
        format: str = "standard",
    ) -> NewSecret:
        """Create a webhook. Its secret is returned once, in `.secret`.

        Args:
            url: where messages are sent.
            events: types such as "job.failed", or "*" for all; by default the types after which a job no longer runs.
            tags: only events of jobs with all of these tags.
            format: "standard", or "slack" for Slack's message format.
        """
        filters = {"events": events and list(events), "tags": tags and dict(tags)}
        fields = {"url": url, "format": format, "name": name, **filters}
        body = {field: value for field, value in fields.items() if value is not None}
        return await self._transport.read(NewSecret, "POST", path_to("webhooks"), body=body)

    async def get(self, webhook_id: str) -> WebhookView:
        """Return a webhook, without its secret."""
        return await self._transport.read(WebhookView, "GET", path_to("webhooks", webhook_id))

    def list(self, *, page_size: int = 100) -> AsyncIterator[WebhookView]:
        """Iterate over the webhooks of the tenant, newest first, without their secrets."""
        return self._transport.records(WebhookView, path_to("webhooks"), {"limit": page_size})

    async def set(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> WebhookView:
        """Change a webhook; arguments that are not passed change nothing."""
        path = path_to("webhooks", webhook_id)
        return await self._transport.read(WebhookView, "PATCH", path, body=changes)

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self._transport.json("DELETE", path_to("webhooks", webhook_id))

    async def rotate(self, webhook_id: str, *, keep_hours: float = 24.0) -> NewSecret:
        """Replace the secret, which is returned once, in `.secret`.

        Args:
            keep_hours: how long messages are also signed with the previous secret.
        """
        path, body = path_to("webhooks", webhook_id, "rotate"), {"keep_hours": keep_hours}
        return await self._transport.read(NewSecret, "POST", path, body=body)

    async def test(self, webhook_id: str) -> DeliveryView:
        """Send a test message; see `wait` for its result."""
        path = path_to("webhooks", webhook_id, "test")
        return await self._transport.read(DeliveryView, "POST", path)

    def deliveries(
        self, webhook_id: str, *, state: str | None = None, page_size: int = 100
    ) -> AsyncIterator[DeliveryView]:
        """Iterate over the messages of a webhook, newest first.

        Args:
            state: "pending", "succeeded" or "failed"; None: all.
        """
        path, params = path_to("webhooks", webhook_id, "deliveries"), {"state": state}
        return self._transport.records(DeliveryView, path, {**params, "limit": page_size})

    async def delivery(
        self, webhook_id: str, delivery_id: str, *, patience: float | None = None
    ) -> DeliveryView:
        """Return a message and its last attempt."""
        path = path_to("webhooks", webhook_id, "deliveries", delivery_id)
        return await self._transport.read(DeliveryView, "GET", path, patience=patience)

    async def wait(
        self, webhook_id: str, delivery_id: str, *, timeout: float | None = 60.0, poll: float = 0.5
    ) -> DeliveryView:
        """Wait until the first attempt to deliver a message has ended.

        Raises:
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        return await wait_until(
            lambda: self.delivery(webhook_id, delivery_id, patience=OUTAGE_SECONDS),
            lambda delivery: delivery.was_attempted,
            f"The first attempt of {delivery_id}",
            timeout=timeout,
            poll=poll,
        )

    async def redeliver(self, webhook_id: str, delivery_id: str) -> DeliveryView:
        """Send a message again, with the same id."""
        path = path_to("webhooks", webhook_id, "deliveries", delivery_id, "redeliver")
        return await self._transport.read(DeliveryView, "POST", path)
