"""How long an attempt counts as heard: without gaps, however seldom the dispatcher looks."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from service.dispatcher.contact import Contact
from service.scheduling.repository import AttemptView

ASKED = datetime(2026, 1, 1, tzinfo=UTC)


def heard(seconds: float) -> AttemptView:
    """An attempt with a heartbeat, and no progress since before the request."""
    at = ASKED + timedelta(seconds=seconds)
    fields = {"submission_id": "a", "heartbeat_at": at, "progressed_at": ASKED}
    return cast("AttemptView", SimpleNamespace(**fields))


def standstill(contact: Contact, heartbeat: float, now: float) -> float:
    later = ASKED + timedelta(seconds=now)
    return contact.standstill(heard(heartbeat), ASKED, later).total_seconds()


@pytest.mark.parametrize("every", [2, 14, 16, 60])
def test_rounds_that_are_rare_are_no_gap(every: int) -> None:
    contact = Contact(timedelta(seconds=15))
    for at in range(every, 241, every):
        last = standstill(contact, at - 1, at)
    lost = every if every <= 15 else 2 * every
    assert last == 240 - 240 % every - lost


def test_pause_of_the_dispatcher_is_a_gap() -> None:
    """The first heartbeat after it may be the driver's, before rank 0 has heard of the request."""
    contact = Contact(timedelta(seconds=15))
    for at in range(2, 12, 2):
        standstill(contact, at, at)
    assert standstill(contact, 79, 80) == 0


def test_gap_begins_the_time_again() -> None:
    contact = Contact(timedelta(seconds=15))
    for at in range(2, 20, 2):
        standstill(contact, at, at)
    for now in range(20, 60, 2):
        standstill(contact, 18, now)  # the API is away
    assert standstill(contact, 60, 60) == 0
    assert standstill(contact, 70, 70) == 10
