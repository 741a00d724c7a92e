"""Manifest of a set of shards: the size and unreadable images of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from dasl_core.data.shard_file import Shard

MANIFEST = "manifest.json"


class Facts(NamedTuple):
    """Size of a shard, and why images have no record, by position in the shard."""

    size: int
    reasons: dict[int, str]

    @classmethod
    def from_shard(cls, shard: Shard) -> Facts:
        """Describe a shard."""
        return cls(shard.size, shard.reasons)


def encode(shards: Mapping[int, Facts]) -> bytes:
    """Return the manifest of shards 0 to N - 1."""
    return json.dumps([shards[number] for number in range(len(shards))]).encode()


def decode(content: bytes, count: int) -> dict[int, Facts]:
    """Read a manifest of `count` shards.

    Raises:
        ValueError: it is damaged.
    """
    shards = json.loads(content)
    try:
        facts = {
            number: Facts(int(size), {int(at): str(why) for at, why in reasons.items()})
            for number, (size, reasons) in enumerate(shards)
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"it is another file: {error}") from error
    if len(facts) != count:
        raise ValueError(f"it has {len(facts)} shards, not {count}")
    return facts
