"""Equal and similar images of a data set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

# Two fingerprints of 64 bits that differ in at most this many are of similar images.
MAX_DISTANCE = 3
# By the pigeonhole principle, two that differ in at most 3 bits are equal in one of 4 parts.
_PARTS, _PART_BITS = MAX_DISTANCE + 1, 16
# More fingerprints that share a part are of images without structure, and each pair is not compared.
_MOST_IN_PART = 500
_EXAMPLES, _PATHS = 20, 10


def fingerprint(pixels: np.ndarray) -> int:
    """Return the 64-bit difference hash of an image (H, W, C): whether each of 9 x 8 areas is darker than the next.

    0 means that the image has no structure. (Krawetz, "Kind of like that", 2013.)
    """
    gray = pixels.mean(axis=2, dtype=np.float32)
    small = np.asarray(Image.fromarray(gray).resize((9, 8), Image.Resampling.BOX))
    bits = np.packbits(small[:, :-1] < small[:, 1:])
    return int.from_bytes(bits.tobytes(), "big")


def equal_groups(digests: Mapping[int, bytes]) -> list[list[int]]:
    """Group the positions of images with equal digests."""
    groups = defaultdict(list)
    for position, digest in sorted(digests.items()):
        groups[digest].append(position)
    return [group for group in groups.values() if len(group) > 1]


def similar_groups(fingerprints: Mapping[int, int]) -> list[list[int]]:
    """Group the positions of images whose fingerprints differ in at most `MAX_DISTANCE` bits, and their neighbors."""
    positions: dict[int, list[int]] = defaultdict(list)
    for position, value in sorted(fingerprints.items()):
        if value:
            positions[value].append(position)
    parent = {value: value for value in positions}

    def root(value: int) -> int:
        while parent[value] != value:
            parent[value] = value = parent[parent[value]]
        return value

    for shift in range(0, _PARTS * _PART_BITS, _PART_BITS):
        parts = defaultdict(list)
        for value in positions:
            parts[value >> shift & (1 << _PART_BITS) - 1].append(value)
        for values in parts.values():
            for low, high in _close_pairs(values):
                parent[root(high)] = root(low)
    groups: dict[int, list[int]] = defaultdict(list)
    for value, found in positions.items():
        groups[root(value)] += found
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _close_pairs(values: list[int]) -> Iterable[tuple[int, int]]:
    if not 1 < len(values) <= _MOST_IN_PART:
        return
    bits = np.array(values, np.uint64)
    distances = np.bitwise_count(bits[:, None] ^ bits[None, :])
    for low, high in np.argwhere(np.triu(distances <= MAX_DISTANCE, 1)):
        yield values[low], values[high]


def describe(groups: Sequence[Sequence[int]], paths: Sequence[str], checked: int) -> dict[str, Any]:
    """Return a report of groups, JSON-ready: their number, the superfluous images, and examples.

    Args:
        checked: number of images that were compared.
    """
    return {
        "checked": checked,
        "groups": len(groups),
        "superfluous": sum(len(group) - 1 for group in groups),
        "examples": [
            [paths[position] for position in group[:_PATHS]] for group in groups[:_EXAMPLES]
        ],
    }
