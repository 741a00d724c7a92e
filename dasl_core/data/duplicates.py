"""Equal and similar images of a data set."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.opening import open_image
from dasl_core.data.sources import Entry, Source

# Images are similar if their 64-bit fingerprints differ in at most this many bits.
MAX_DISTANCE = 3
# By the pigeonhole principle, fingerprints that differ in at most 3 bits are equal in one of 4 parts.
_PARTS, _PART_BITS = MAX_DISTANCE + 1, 16
# If more fingerprints share a part, their images lack structure, and not every pair is compared.
_MOST_IN_PART = 500
_EXAMPLES, _PATHS = 20, 10
# Limit on the total bytes of files of equal size that are compared by content.
_COMPARED_BYTES = 2 << 30
_BLOCK = 1 << 20


def fingerprint(pixels: np.ndarray) -> int:
    """Return the 64-bit difference hash of an image (H, W, C): whether each of 9 x 8 areas is darker than the next.

    0 means that the image has no structure. (Krawetz, "Kind of like that", 2013.)
    """
    # `mean` over the last axis takes four times as long.
    gray = pixels[:, :, 0].astype(np.float32)
    for band in range(1, pixels.shape[2]):
        gray += pixels[:, :, band]
    gray /= pixels.shape[2]
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
    for value, members in positions.items():
        groups[root(value)] += members
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _close_pairs(values: list[int]) -> Iterable[tuple[int, int]]:
    if not 1 < len(values) <= _MOST_IN_PART:
        return
    bits = np.array(values, np.uint64)
    distances = np.bitwise_count(bits[:, None] ^ bits[None, :])
    for low, high in np.argwhere(np.triu(distances <= MAX_DISTANCE, 1)):
        yield values[low], values[high]


def describe(groups: Sequence[Sequence[int]], paths: Sequence[str], checked: int) -> dict[str, Any]:
    """Report groups, JSON-ready: their number, the superfluous images, and examples.

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


def equal_files(
    source: Source, entries: list[Entry], threads: int, on_progress: Callable[[int, int], None]
) -> dict[str, object]:
    """Report equal files; reads only files of equal sizes, up to `_COMPARED_BYTES`."""
    lengths = Counter(entry.length for entry in entries if entry.length > 0)
    candidates = [position for position, entry in enumerate(entries) if lengths[entry.length] > 1]
    if sum(entries[position].length for position in candidates) > _COMPARED_BYTES:
        return describe([], [], 0)

    def digest(position: int) -> bytes | None:
        try:
            with open_image(source, entries[position]) as file:
                state = hashlib.blake2b(digest_size=16)
                while block := file.read(_BLOCK):
                    state.update(block)
                return state.digest()
        except (OSError, ValueError):
            return None  # it changed since its header was read; training reports it

    digests: dict[int, bytes] = {}
    with ThreadPoolExecutor(threads, "compare") as pool:
        results = bounded_map(pool, digest, candidates, AHEAD_PER_THREAD * threads)
        for number, (position, value) in enumerate(zip(candidates, results, strict=True), start=1):
            if value is not None:
                digests[position] = value
            on_progress(number, len(candidates))
    paths = [entry.key for entry in entries]
    return describe(equal_groups(digests), paths, len(entries))


def similar_images(
    positions: list[int], paths: list[str], fingerprints: dict[int, int]
) -> dict[str, object]:
    """Report similar images of the sample.

    Args:
        positions: positions of the usable images among all images read.
        paths: paths of the usable images.
        fingerprints: fingerprints of the sample, by position among all images read.
    """
    selected = {
        number: fingerprints[position]
        for number, position in enumerate(positions)
        if position in fingerprints
    }
    return describe(similar_groups(selected), paths, len(selected))
