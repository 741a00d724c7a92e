"""Build answers from the rows of events."""

from service.db.models import Event
from service.events.levels import event_level
from service.wire.events import EventEntry, EventView


def event_view(event: Event) -> EventView:
    fields = {name: getattr(event, name) for name in ("seq", "at", "type", "message", "data")}
    return EventView(level=event_level(event.type, event.data), **fields)


def event_entry(event: Event, job_name: str) -> EventEntry:
    """Return the entry of an event that has a position."""
    assert event.position is not None
    job = {"id": event.position, "job_id": event.job_id, "job_name": job_name}
    return EventEntry(**job, **dict(event_view(event)))
