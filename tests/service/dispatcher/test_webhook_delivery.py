"""Delivery of webhooks by the dispatcher: retries, ends, disabling, bounds, and the death of the process at any moment."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, select

from service import ids
from service.credentials import new_webhook_secret
from service.db.models import AuditEntry, Job, Webhook, WebhookDelivery
from service.db.rows import newest, one, owned
from service.dispatcher import webhooks as module
from service.dispatcher.housekeeping import KEEP_DELIVERIES, Housekeeping
from service.dispatcher.webhooks import MAX_REQUESTS_OF_TENANT
from service.dispatcher.webhooks import WebhookDelivery as Delivery
from service.outbox import repository as outbox
from service.outbox.retries import MAX_ATTEMPTS, RETRY_PERIOD, Outcome
from service.webhooks import repository
from tests.service.dispatcher.test_dispatcher_crashes import Crash, Death
from tests.support.clocks import something_happens
from tests.support.dispatcher_world import World
from tests.support.webhook_receiver import Received, Reply, receiver

HOUR = timedelta(hours=1)


@pytest.fixture
def world(world: World) -> World:
    """A world whose webhooks may reach this machine, and whose dispatcher is in charge."""
    world.settings.webhook_allowed_hosts = ("127.0.0.1",)
    world.restart()
    assert world.dispatcher._context.take_lease()
    return world


def add_webhook(world: World, url: str, tenant: str = "default", **columns: Any) -> str:
    webhook = Webhook(
        id=ids.new_id("whk"),
        tenant=tenant,
        url=url,
        **{"name": "", "events": ["*"], "tags": {}, "format": "standard", **columns},
        secret=new_webhook_secret(),
        created_at=world.now(),
    )
    with world.database.write() as session:
        session.add(webhook)
    return webhook.id


def add_message(world: World, webhook_id: str) -> str:
    with world.database.write() as session:
        webhook = session.get_one(Webhook, webhook_id)
        return outbox.add_test(session, webhook, world.now())


def webhook(world: World, webhook_id: str) -> Webhook:
    with world.database.read() as session:
        return session.get_one(Webhook, webhook_id)


def delivery(world: World, delivery_id: str) -> WebhookDelivery:
    with world.database.read() as session:
        return session.get_one(WebhookDelivery, delivery_id)


def run(world: World, after: timedelta = timedelta(), sender: Any = None) -> None:
    """Advance the clock and run a round of a dispatcher that remembers nothing."""
    world.ahead += after
    assert world.dispatcher._context.take_lease()
    assert Delivery(world.dispatcher._context, sender).round()


def refuse(times: int, status: int = 500) -> Callable[[Received], Reply]:
    """Return a handler that refuses so many requests, then accepts."""
    left = iter([Reply(status)] * times)
    return lambda _: next(left, Reply(200))


def test_receiver_that_fails_five_times_and_then_accepts_gets_the_message(world: World) -> None:
    with receiver(refuse(5)) as hook:
        webhook_id = add_webhook(world, hook.url)
        job = world.add_job()
        for attempt in range(1, 6):
            run(world)
            assert len(hook.requests) == attempt
            with world.database.read() as session:
                (row,) = session.scalars(select(WebhookDelivery))
            assert (row.state, row.attempts, row.response_status) == ("pending", attempt, 500)
            pause = (row.next_at - world.now()).total_seconds()
            assert 0.75 * 5 * 4 ** (attempt - 1) <= pause <= 1.25 * 5 * 4 ** (attempt - 1)
            run(world, timedelta(seconds=pause - 0.1))  # too early
            assert len(hook.requests) == attempt
            world.ahead += timedelta(seconds=0.2)
        run(world)
        run(world, 10 * HOUR)
    assert len(hook.requests) == 6
    row, secret = delivery(world, hook.requests[0].id), webhook(world, webhook_id).secret
    assert (row.state, row.attempts, row.response_status) == ("succeeded", 6, 200)
    assert {each.id for each in hook.requests} == {row.id}
    for request in hook.requests:
        payload = request.verified(secret)
        assert (payload["type"], payload["data"]["id"]) == ("job.queued", job)
        assert payload["data"]["url"] == f"http://127.0.0.1:8123/#/jobs/{job}"
    assert webhook(world, webhook_id).last_success_at == row.finished_at


def test_defect_in_a_delivery_does_not_hold_its_webhook(world: World) -> None:
    class Broken:
        def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> Outcome:
            raise RuntimeError("a defect")

    webhook_id = add_webhook(world, "http://127.0.0.1:9")
    message = add_message(world, webhook_id)
    loop = Delivery(world.dispatcher._context, Broken())
    assert loop.round()
    row = delivery(world, message)
    assert (row.state, row.attempts) == ("pending", 1)
    assert row.error == "the dispatcher failed to send it; see its log"
    assert not loop._sending


def test_both_secrets_sign_until_the_previous_one_ends(world: World) -> None:
    previous, until = new_webhook_secret(), world.now() + HOUR
    with receiver() as hook:
        webhook_id = add_webhook(
            world, hook.url, previous_secret=previous, previous_secret_until=until
        )
        add_message(world, webhook_id)
        run(world)
        add_message(world, webhook_id)
        run(world, HOUR)
    secret = webhook(world, webhook_id).secret
    first, second = hook.requests
    assert first.verified(secret) == first.verified(previous)
    second.verified(secret)
    with pytest.raises(Exception, match="No matching signature"):
        second.verified(previous)


def test_retry_after_is_honored(world: World) -> None:
    busy = iter([Reply(429, (("Retry-After", "7200"),))])
    with receiver(lambda _: next(busy, Reply())) as hook:
        message = add_message(world, add_webhook(world, hook.url))
        run(world)
        assert delivery(world, message).next_at == world.now() + 2 * HOUR
        run(world, 2 * HOUR - timedelta(seconds=1))
        assert len(hook.requests) == 1
        run(world, timedelta(seconds=1))
    assert delivery(world, message).state == "succeeded"


def test_410_disables_the_webhook_and_is_in_the_audit_log(world: World) -> None:
    with receiver(lambda _: Reply(410)) as gone, receiver() as other:
        webhook_id = add_webhook(world, gone.url, name="old")
        others = [add_webhook(world, other.url, events=["webhook.disabled"]), webhook_id]
        add_webhook(world, other.url, tenant="another")
        messages = [add_message(world, webhook_id) for _ in range(3)]
        run(world)
        run(world, HOUR)
    assert len(gone.requests) == 1
    assert {delivery(world, each).state for each in messages} == {"failed"}
    row = webhook(world, webhook_id)
    assert row.disabled_at is not None
    assert row.disabled_reason == "The receiver answered 410"
    with world.database.read() as session:
        (entry,) = session.scalars(select(AuditEntry))
    assert (entry.tenant, entry.token_id, entry.method) == ("default", "dispatcher", "DISABLE")
    assert (entry.path, entry.status) == (f"/v1/webhooks/{webhook_id}", 410)
    (notice,) = other.requests
    payload = notice.verified(webhook(world, others[0]).secret)
    assert payload["type"] == "webhook.disabled"
    assert (payload["data"]["id"], payload["data"]["name"]) == (webhook_id, "old")


def away(*_: object) -> Outcome:
    return Outcome(None, "no connection")


def test_webhook_that_accepts_nothing_for_days_is_disabled(world: World) -> None:
    sender = SimpleNamespace(send=away)
    webhook_id = add_webhook(world, "https://hooks.example.org")
    message = add_message(world, webhook_id)
    began, rounds = world.now(), 0
    while delivery(world, message).state == "pending":
        run(world, HOUR, sender)
        rounds += 1
    assert timedelta(days=2) < world.now() - began <= RETRY_PERIOD + HOUR
    assert delivery(world, message).attempts <= MAX_ATTEMPTS
    reason = webhook(world, webhook_id).disabled_reason
    assert reason is not None
    assert reason.endswith("no connection")
    with world.database.read() as session:
        assert [each.status for each in session.scalars(select(AuditEntry))] == [0]


def test_webhook_that_accepts_other_messages_stays_enabled(world: World) -> None:
    """A message that the receiver cannot take must not end all others."""
    webhook_id = add_webhook(world, "https://hooks.example.org")
    bad = add_message(world, webhook_id)

    def send(url: str, message_id: str, body: bytes, secrets: list[str]) -> Outcome:
        return Outcome(500, "broken") if message_id == bad else Outcome(200, None)

    sender = SimpleNamespace(send=send)
    while delivery(world, bad).state == "pending":
        add_message(world, webhook_id)
        run(world, HOUR, sender)
    assert delivery(world, bad).state == "failed"
    assert webhook(world, webhook_id).disabled_at is None


def test_message_is_sent_at_least_once_after_a_long_absence_of_the_dispatcher(world: World) -> None:
    with receiver() as hook:
        message = add_message(world, add_webhook(world, hook.url))
        run(world, 2 * RETRY_PERIOD)
    assert delivery(world, message).state == "succeeded"


def test_last_attempt_whose_result_is_unknown_is_not_repeated(world: World) -> None:
    with receiver() as hook:
        message = add_message(world, add_webhook(world, hook.url))
        with world.database.write() as session:
            session.get_one(WebhookDelivery, message).attempts = MAX_ATTEMPTS
        run(world)
    row = delivery(world, message)
    assert (row.state, hook.requests) == ("failed", [])
    assert "is unknown" in str(row.error)


@pytest.mark.dialect
def test_message_of_a_webhook_that_is_deleted_meanwhile_is_not_sent(world: World) -> None:
    hook = add_webhook(world, "https://example.org")
    add_message(world, hook)
    with world.database.write() as session:
        ((message, _),) = outbox.due(session, world.now(), [])
        session.execute(delete(Webhook).where(Webhook.id == hook))
        assert not outbox.claim(session, message, world.now())


def test_outcome_of_an_earlier_attempt_is_discarded(world: World) -> None:
    message = add_message(world, add_webhook(world, "https://example.org"))
    with world.database.write() as session:
        for _ in range(2):
            row = session.get_one(WebhookDelivery, message, populate_existing=True)
            assert outbox.claim(session, row, world.now())
        outbox.record(session, message, 1, Outcome(200, None), world.now())
    assert delivery(world, message).state == "pending"


@dataclass
class Blocking:
    """A sender whose requests to some addresses take until they are released."""

    slow: str
    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> Outcome:
        with self.lock:
            self.running[url] += 1
            self.most[url] = max(self.most[url], self.running[url])
        if url.startswith(self.slow):
            assert self.release.wait(60)
        with self.lock:
            self.running[url] -= 1
        return Outcome(200, None)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    sender = Blocking("https://slow")
    yield sender
    sender.release.set()


def run_until_delivered(world: World, loop: Delivery, messages: list[str]) -> None:
    for _ in range(60):
        assert loop.round()
        if {delivery(world, each).state for each in messages} == {"succeeded"}:
            return
    pytest.fail("the messages are not delivered")


def test_slow_receiver_delays_neither_others_nor_the_loop(world: World, blocking: Blocking) -> None:
    slow = [add_webhook(world, f"https://slow/{n}") for n in range(MAX_REQUESTS_OF_TENANT + 2)]
    held = [add_message(world, each) for each in slow for _ in range(2)]
    fast = add_webhook(world, "https://fast", tenant="another")
    loop = Delivery(world.dispatcher._context, blocking)
    assert loop.round()  # returns although no request to a slow receiver has ended
    quick = [add_message(world, fast) for _ in range(5)]
    run_until_delivered(world, loop, quick)
    assert {delivery(world, each).state for each in held} == {"pending"}
    assert sum(blocking.running.values()) == MAX_REQUESTS_OF_TENANT
    blocking.release.set()
    run_until_delivered(world, loop, held)
    assert set(blocking.most.values()) == {1}, "one request at a time for each webhook"


@pytest.mark.dialect
def test_only_the_dispatcher_in_charge_sends(world: World) -> None:
    with receiver() as hook:
        message = add_message(world, add_webhook(world, hook.url))
        second = world.restart("second")
        assert not Delivery(second._context).round()
        assert not second._context.take_lease()
    assert (delivery(world, message).attempts, hook.requests) == (0, [])


@pytest.mark.dialect
def test_outcome_is_recorded_after_an_outage_of_the_database(world: World) -> None:
    with receiver() as hook:
        message = add_message(world, add_webhook(world, hook.url))
        loop = Delivery(world.dispatcher._context)
        with pytest.MonkeyPatch.context() as patch:

            def broken(*_: object) -> None:
                raise ConnectionError("the database is away")

            patch.setattr(outbox, "record", broken)
            with pytest.raises(ConnectionError):
                loop.round()
        assert loop.round()
    assert (delivery(world, message).state, len(hook.requests)) == ("succeeded", 1)


@pytest.mark.dialect
def test_old_deliveries_and_those_of_deleted_webhooks_are_removed(world: World) -> None:
    with receiver() as hook:
        webhook_id = add_webhook(world, hook.url)
        old = add_message(world, webhook_id)
        run(world)
        world.ahead += KEEP_DELIVERIES + HOUR
        recent = add_message(world, webhook_id)
        run(world)
    waiting = add_message(world, webhook_id)
    deleted = add_message(world, add_webhook(world, hook.url))
    with world.database.write() as session:
        orphan = session.get_one(WebhookDelivery, deleted)
        orphan.webhook_id = ids.new_id("whk")  # as if its event were committed after the deletion
    assert world.dispatcher._context.take_lease()
    something_happens(world.database, world.now())
    Housekeeping(world.dispatcher._context).round()
    with world.database.read() as session:
        left = set(session.scalars(select(WebhookDelivery.id)))
    assert left == {recent, waiting}
    assert old not in left


def test_main_dispatcher_delivers(world: World) -> None:
    with receiver() as hook:
        webhook_id = add_webhook(world, hook.url, events=["job.cancelled"], format="slack")
        job = world.add_job()
        world.cancel(job)
        world.tick()
    (request,) = hook.requests
    link = f"<http://127.0.0.1:8123/#/jobs/{job}|a job>"
    assert request.verified(webhook(world, webhook_id).secret) == {"text": f"{link}: Job cancelled"}


# --- no order of events, and no death of the process, loses a message


# No death, or one just before or just after a commit.
moments = st.sampled_from([-1, -1, 0, 1])


class AtOnce:
    """In place of a thread: the request ends before the loop continues, so that the order is the test's."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


class Story(RuleBasedStateMachine):
    """Events, changes of webhooks, failures of receivers and deaths of processes, one at a time."""

    world: World
    webhooks = Bundle("webhooks")

    def __init__(self) -> None:
        super().__init__()
        self.accepts, self.status = True, 500
        self.requests: dict[str, list[bytes]] = defaultdict(list)
        self.accepted: set[str] = set()
        self.expected: dict[str, set[tuple[str, str]]] = defaultdict(set)
        """The events, by type and job, that each webhook must be notified of."""
        self.deleted: set[str] = set()
        self.jobs: list[str] = []
        with self.world.database.write() as session:
            session.execute(delete(Webhook))
            session.execute(delete(WebhookDelivery))
        self.world.restart()

    def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> Outcome:
        assert url not in self.deleted, "a deleted webhook is notified"
        self.requests[message_id].append(body)
        if not self.accepts:
            return Outcome(self.status, "refused")
        self.accepted.add(message_id)
        return Outcome(204, None)

    @initialize(target=webhooks)
    def begin(self) -> str:
        return self.add_webhook()

    @rule(target=webhooks)
    def create(self) -> str:
        return self.add_webhook()

    def add_webhook(self) -> str:
        webhook_id = add_webhook(self.world, "")
        with self.world.database.write() as session:
            # So the requests tell whose they are.
            session.get_one(Webhook, webhook_id).url = webhook_id
        return webhook_id

    @rule(moment=moments)
    def submit(self, moment: int) -> None:
        """Submit a job; the process may die just before or just after the commit."""
        job = self.do(moment, self.world.add_job, lambda: self.newest("queued"))
        if job is not None:
            self.jobs.append(job)

    @rule(moment=moments)
    def cancel(self, moment: int) -> None:
        if self.jobs:
            job = self.jobs.pop()
            committed = lambda: job if self.world.status(job) == "cancelled" else None  # noqa: E731
            if self.do(moment, lambda: self.world.cancel(job), committed) is None:
                self.jobs.append(job)

    def do(
        self, moment: int, action: Callable[[], Any], committed: Callable[[], str | None]
    ) -> str | None:
        """Act with a process that may die; note the event if it was committed. Return its job."""
        before, death, database = committed(), Death(moment), self.world.database
        with pytest.MonkeyPatch.context() as patch, suppress(Crash):
            patch.setattr(database, "write", death.around_commits(database.write))
            action()
        job = committed()
        if job is None or job == before:
            return None
        with database.read() as session:
            for webhook_id in session.scalars(
                select(Webhook.id).where(Webhook.disabled_at.is_(None))
            ):
                self.expected[webhook_id].add((f"job.{self.world.status(job)}", job))
        return job

    def newest(self, status: str) -> str | None:
        with self.world.database.read() as session:
            query = select(Job.id).where(Job.status == status).order_by(Job.id.desc()).limit(1)
            return session.scalars(query).one_or_none()

    @rule(accepts=st.booleans(), status=st.sampled_from([500, 503, 404, 302]))
    def receivers_change(self, accepts: bool, status: int) -> None:
        self.accepts, self.status = accepts, status

    @rule(seconds=st.sampled_from([1, 30, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.world.ahead += timedelta(seconds=seconds)

    @rule(at=st.integers(-1, 12), holder=st.sampled_from(["first", "second"]))
    def round(self, at: int, holder: str) -> None:
        """Run a round; the dispatcher may die around any commit or request."""
        death, world = Death(at), self.world
        sender = SimpleNamespace(send=death.around_calls(self.send))
        with pytest.MonkeyPatch.context() as patch, suppress(Crash):
            patch.setattr(world.database, "write", death.around_commits(world.database.write))
            if world.dispatcher._context.take_lease():
                Delivery(world.dispatcher._context, sender).round()
        if at >= 0:
            world.restart(holder)

    @rule(webhook_id=webhooks)
    def remove(self, webhook_id: str) -> None:
        with self.world.database.write() as session:
            row = one(session, owned(Webhook, "default"), webhook_id, lock=True)
            if row is not None:
                repository.remove(session, row)
        self.deleted.add(webhook_id)

    @rule(webhook_id=webhooks)
    def disable_and_enable(self, webhook_id: str) -> None:
        with self.world.database.write() as session:
            if outbox.disable(session, webhook_id, "test", self.world.now()):
                session.get_one(Webhook, webhook_id).disabled_at = None
        self.expected[webhook_id].clear()  # given up

    @rule(webhook_id=webhooks)
    def send_again(self, webhook_id: str) -> None:
        with self.world.database.write() as session:
            rows = newest(session, repository.deliveries(webhook_id), None, 1)
            if rows and rows[0].state != "pending":
                self.requests[rows[0].id].clear()
                self.accepted.discard(rows[0].id)
                repository.send_again(session, rows[0], self.world.now())

    @invariant()
    def attempts_are_bounded_and_the_content_is_stable(self) -> None:
        for bodies in self.requests.values():
            assert len(bodies) <= MAX_ATTEMPTS
            assert len(set(bodies)) <= 1

    def pending(self) -> int:
        with self.world.database.read() as session:
            rows = session.scalars(
                select(WebhookDelivery.webhook_id).where(WebhookDelivery.state == "pending")
            )
            return len([each for each in rows if each not in self.deleted])

    def teardown(self) -> None:
        """In the end all receivers accept and nothing dies: every message has arrived."""
        self.accepts = True
        world, rounds = self.world, 0
        world.restart()
        while self.pending():
            rounds += 1
            assert rounds < 20
            world.ahead += 7 * HOUR
            if world.dispatcher._context.take_lease():
                sender = SimpleNamespace(send=self.send)
                Delivery(world.dispatcher._context, sender).round()
        with world.database.read() as session:
            rows = session.scalars(select(WebhookDelivery)).all()
        assert {row.id for row in rows if row.state == "succeeded"} <= self.accepted
        for webhook_id, events in self.expected.items():
            arrived = {
                (row.type, row.message["data"]["id"])
                for row in rows
                if row.webhook_id == webhook_id and row.id in self.accepted
            }
            assert webhook_id in self.deleted or events <= arrived


@pytest.mark.hypothesis
@pytest.mark.dialect(slow="postgresql")
def test_no_order_of_events_and_deaths_loses_a_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=AtOnce))

    class StoryHere(Story):
        pass

    StoryHere.world = world
    run_state_machine_as_test(
        StoryHere,
        settings=settings(
            max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck)
        ),
    )
