"""The commands `dasl webhooks ...`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import console
from service.cli.formats import number, tags_text
from service.cli.inputs import connect, given, id_argument, tags, text_option, utf8

if TYPE_CHECKING:
    from service.wire.webhooks import DeliveryView, NewSecret, WebhookView

WebhookId = Annotated[str, id_argument("WEBHOOK_ID", "Id of the webhook.")]
DeliveryId = Annotated[str, id_argument("DELIVERY_ID", "Id of the delivery.")]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TYPE",
        help="Type of event, such as job.failed or dataset.ready, or * for all. Can be repeated.",
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="KEY:VALUE", help="Only events of jobs with this tag. Can be repeated."
    ),
]
Name = Annotated[str | None, text_option("Name of the webhook.")]

app = typer.Typer(
    name="webhooks",
    no_args_is_help=True,
    help="Send notifications of events to other services. Needs an admin token.",
)


@app.command()
def create(
    url: Annotated[str, typer.Argument(callback=utf8, help="Address, https.")],
    name: Name = None,
    event: Events = None,
    tag: Tags = None,
    slack: Annotated[
        bool, typer.Option("--slack", help="Send messages in the form that Slack takes.")
    ] = False,
) -> None:
    """Create a webhook and print its secret once.

    By default it is notified when a job has succeeded, failed, or is cancelled or paused.
    """
    with connect() as client:
        format = "slack" if slack else "standard"
        webhook = client.webhooks.create(
            url, name=name, events=event or None, tags=tags(tag), format=format
        )
    _print_secret(webhook, f"{webhook.id}, notified of {', '.join(webhook.events)}.")


@app.command("list")
def list_webhooks() -> None:
    """List webhooks, newest first, without their secrets."""
    shown: console.Columns[WebhookView] = {
        "ID": lambda webhook: webhook.id,
        "NAME": lambda webhook: webhook.name or None,
        "URL": lambda webhook: webhook.url,
        "EVENTS": lambda webhook: ",".join(webhook.events),
        "TAGS": lambda webhook: tags_text(webhook.tags) or None,
        **console.columns("last_success_at", "disabled_at"),
    }
    with connect() as client:
        console.print_records(client.webhooks.list(), shown)


@app.command()
def show(webhook: WebhookId) -> None:
    """Show a webhook."""
    with connect() as client:
        _print(client.webhooks.get(webhook))


@app.command("set")
def set_webhook(
    webhook: WebhookId,
    url: Annotated[str | None, text_option("Address, https.")] = None,
    name: Name = None,
    event: Events = None,
    tag: Tags = None,
) -> None:
    """Change a webhook. Events and tags replace those that it has."""
    changes = given(url=url, name=name, events=event or None, tags=tags(tag))
    if not changes:
        raise typer.BadParameter("expected at least one change, such as --event job.failed")
    with connect() as client:
        _print(client.webhooks.set(webhook, **changes))


@app.command()
def enable(webhook: WebhookId) -> None:
    """Send notifications again. Those from while it was disabled are not sent."""
    with connect() as client:
        record = client.webhooks.set(webhook, disabled=False)
    console.print_result(record, f"Webhook {record.id} is enabled.")


@app.command()
def disable(webhook: WebhookId) -> None:
    """Send no notifications from now on. Those that wait are given up."""
    with connect() as client:
        record = client.webhooks.set(webhook, disabled=True)
    console.print_result(record, f"Webhook {record.id} is disabled.")


@app.command()
def rm(webhook: WebhookId) -> None:
    """Delete a webhook with its deliveries."""
    with connect() as client:
        client.webhooks.delete(webhook)
    console.print_result({"deleted": webhook}, f"Deleted webhook {webhook}.")


@app.command("test")
def send_test(webhook: WebhookId) -> None:
    """Send a test message and wait for its first attempt. Exit code 1: the receiver did not accept it."""
    with connect() as client:
        sent = client.webhooks.test(webhook)
        delivery = client.webhooks.wait(webhook, sent.id)
    if console.as_json():
        console.print_json(delivery)
    elif delivery.state == "succeeded":
        answer = f"{delivery.response_status} in {number(delivery.seconds, 2)} s"
        console.print_line(f"{delivery.id}: the receiver answers {answer}.")
    if delivery.state != "succeeded":
        again = "" if delivery.next_at is None else ". It is sent again"
        raise console.fail(f"{delivery.id}: {delivery.error}{again}")


@app.command()
def rotate(
    webhook: WebhookId,
    keep_hours: Annotated[
        float,
        typer.Option(
            min=0, max=168, help="Hours for which the previous secret stays valid, beside the new."
        ),
    ] = 24.0,
) -> None:
    """Replace the secret of a webhook and print the new one once."""
    with connect() as client:
        record = client.webhooks.rotate(webhook, keep_hours=keep_hours)
    until = record.previous_secret_until
    previous = "" if until is None else f" The previous one is valid until {until.astimezone():%c}."
    _print_secret(record, f"{record.id} has a new secret.{previous}")


@app.command()
def deliveries(
    webhook: WebhookId,
    state: Annotated[
        str | None, typer.Option(help="Show only those that are pending, succeeded or failed.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10**6, help="Maximum number of deliveries.")
    ] = 50,
) -> None:
    """List the messages of a webhook, newest first, with the last attempt of each."""
    shown: console.Columns[DeliveryView] = {
        **console.columns("id", "created_at", "type", "state", "attempts", LAST="attempted_at"),
        **console.columns(ANSWER="response_status", NEXT="next_at", ERROR="error"),
    }
    with connect() as client:
        pages = client.webhooks.deliveries(webhook, state=state, page_size=min(limit, 200))
        console.print_records(islice(pages, limit), shown)


@app.command()
def redeliver(webhook: WebhookId, delivery: DeliveryId) -> None:
    """Send a message again, with the same id."""
    with connect() as client:
        record = client.webhooks.redeliver(webhook, delivery)
    console.print_result(record, f"{record.id} ({record.type}) is sent again.")


def _print_secret(webhook: NewSecret, remark: str) -> None:
    remark = f"{remark} Save the secret: it is not shown again."
    console.print_secret(webhook, webhook.secret, remark)


def _print(webhook: WebhookView) -> None:
    console.print_record(
        webhook,
        [
            *console.facts(webhook, "id", "name", "url"),
            ("events", ", ".join(webhook.events)),
            ("tags", tags_text(webhook.tags)),
            *console.facts(webhook, "format", "created_at", "last_success_at"),
            ("old secret until", webhook.previous_secret_until),
            ("disabled", webhook.disabled_at),
            ("reason", webhook.disabled_reason),
        ],
    )
