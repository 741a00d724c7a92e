"""Settings that differ among resolved specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# They never change what is trained.
_IRRELEVANT = ("name", "priority", "preemptible", "tags", "track", "checkpoints", "resources")


def differing(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[object]]:
    """Return the values of each setting that is not the same in all specs, by its dotted name."""
    leaves = [dict(_leaves(spec)) for spec in specs]
    names = dict.fromkeys(name for each in leaves for name in each)
    values = {name: [each.get(name) for each in leaves] for name in names}
    return {
        name: each
        for name, each in values.items()
        if name.partition(".")[0] not in _IRRELEVANT and any(value != each[0] for value in each)
    }


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            leaves += _leaves(value, f"{prefix}{name}.")
        elif value is not None:  # null is as good as a section that is missing
            leaves.append((f"{prefix}{name}", value))
    return leaves
