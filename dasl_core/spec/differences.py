"""Settings that differ among resolved specs."""

from collections.abc import Mapping, Sequence
from typing import Any

# Settings that never change the training.
_IRRELEVANT = ("name", "priority", "preemptible", "tags", "track", "checkpoints", "resources")


def differing(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[object]]:
    """Return the values of each setting that is not the same in all specs, by its dotted name."""
    leaves = [dict(_leaves(spec)) for spec in specs]
    names = dict.fromkeys(name for leaf in leaves for name in leaf)
    values = {name: [leaf.get(name) for leaf in leaves] for name in names}
    return {
        name: column
        for name, column in values.items()
        if name.partition(".")[0] not in _IRRELEVANT and any(value != column[0] for value in column)
    }


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            leaves += _leaves(value, f"{prefix}{name}.")
        elif value is not None:  # null equals a missing section
            leaves.append((f"{prefix}{name}", value))
    return leaves
