"""Tenants take turns: the order in which their owners of runs get one of a few places."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

# Earlier and later than any start of a run.
_NEVER, _NOW = (time.replace(tzinfo=UTC) for time in (datetime.min, datetime.max))


def take_turns(
    waiting: Iterable[tuple[str, str]],
    running: Mapping[str, int],
    began: Mapping[str, datetime],
    most: int,
) -> list[str]:
    """Return the owners whose runs start next.

    The tenant with the fewest runs is next; among several, the one whose last run began first. A tenant's oldest
    owner is next. One tenant has at most one run fewer than all may have, so that long runs leave a place to others.

    Args:
        waiting: tenant and id of each owner, the oldest first.
        running: number of runs of each tenant.
        began: start of the last run of each tenant that has had one.
        most: runs of all tenants together, of which at least one is allowed to each.
    """
    queues: dict[str, list[str]] = {}
    for tenant, owner in waiting:
        queues.setdefault(tenant, []).append(owner)
    counts, last = Counter(running), dict(began)
    due: list[str] = []
    while queues and counts.total() < most:
        tenant = min(
            queues, key=lambda name: (counts[name], last.get(name, _NEVER), queues[name][0])
        )
        if counts[tenant] >= max(1, most - 1):
            break
        due.append(queues[tenant].pop(0))
        if not queues[tenant]:
            del queues[tenant]
        counts[tenant] += 1
        last[tenant] = _NOW
    return due
