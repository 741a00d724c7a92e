"""Tenants take turns: the order in which their owners of runs get one of a few places."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

# Earlier and later than any start of a run.
_NEVER, _NOW = (time.replace(tzinfo=UTC) for time in (datetime.min, datetime.max))


def take_turns(
    waiting: Iterable[tuple[str, str]],
    running: Mapping[str, int],
    began: Mapping[str, datetime],
    places: int,
) -> list[str]:
    """Return the owners whose runs start next.

    The tenant with the fewest runs is next; among several, the one whose last run began first. A tenant's oldest
    owner is next.

    Args:
        waiting: tenant and id of each owner, the oldest first.
        running: number of runs of each tenant.
        began: start of the last run of each tenant that has had one.
        places: most owners to return.
    """
    queues: dict[str, list[str]] = {}
    for tenant, owner in waiting:
        queues.setdefault(tenant, []).append(owner)
    counts, last = dict(running), dict(began)
    due: list[str] = []
    while queues and len(due) < places:
        tenant = min(
            queues, key=lambda name: (counts.get(name, 0), last.get(name, _NEVER), queues[name][0])
        )
        due.append(queues[tenant].pop(0))
        if not queues[tenant]:
            del queues[tenant]
        counts[tenant] = counts.get(tenant, 0) + 1
        last[tenant] = _NOW
    return due
