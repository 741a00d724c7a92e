"""Equal files and near-duplicate images of a data set, which must not be on both sides of a holdout.

Two images are near-duplicates if all of these hold for their thumbnails (`reduce`):

* their difference hashes of 64 bits differ in at most `MAX_BITS`,
* the mean difference of their luminance is at most `MAX_MEAN` of the pixels' range, and
* the mean luminance of no block of 4 x 4 pixels, and no band's mean in a block of 8 x 8, differs by more than
  `MAX_BLOCK` of it.

The hash alone joins most photos of a kind, and the mean icons that differ in a detail, which the blocks see. JPEG keeps
less of the color than of the luminance, so that color is compared in larger blocks.
``python -m benchmarks.near_duplicates`` measured the limits.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.opening import open_image
from dasl_core.data.sources import Entry, Source

MAX_BITS, MAX_MEAN, MAX_BLOCK = 3, 0.03, 0.08
# Limits on the images that are compared, and on the bytes of their thumbnails.
MOST_COMPARED, _MOST_BYTES = 65_536, 256 << 20
# Of more images with a close hash, the first ones are compared.
MOST_CANDIDATES = 4000
# Of those with close blocks, the pixels of the first ones.
MOST_ALIKE = 256
_SIDE = 32
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # as JPEG's
# Areas must differ by this share of the thumbnail's contrast, or flat areas get the bits of a JPEG's noise.
_MARGIN = 0.04
_EXAMPLES, _PATHS = 20, 10
# Limit on the total bytes of files of equal size that are compared by content.
_COMPARED_BYTES = 2 << 30
_READ_BYTES = 1 << 20


def most_compared(bands: int, dtype: str) -> int:
    """Return the number of images whose thumbnails are kept for comparison."""
    of_one = _SIDE * _SIDE * len(_bands_compared(bands)) * np.dtype(dtype).itemsize
    return min(MOST_COMPARED, _MOST_BYTES // of_one)


def _bands_compared(bands: int) -> list[int]:
    """Return the bands of which a thumbnail consists: those of color, or three evenly spaced ones of a stack."""
    if bands == 1:
        return [0]
    return [0, 1, 2] if bands in (3, 4) else [0, bands // 2, bands - 1]


def reduce(image: np.ndarray) -> np.ndarray:
    """Return the thumbnail (32, 32, 1 or 3) of an image (H, W, C); see `_bands_compared`."""
    bands = _bands_compared(image.shape[2])
    if image.dtype == np.uint8 and len(bands) == image.shape[2] == 3:
        return np.asarray(_resized(image))  # equal to that of each band, and faster
    reduced = []
    for band in np.moveaxis(image, 2, 0)[bands]:
        pixels = band if band.dtype == np.uint8 else band.astype(np.float32)
        reduced.append(np.asarray(_resized(np.ascontiguousarray(pixels))))
    stacked = np.stack(reduced, axis=2)
    return (stacked if image.dtype.kind == "f" else stacked.round()).astype(image.dtype)


def _resized(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels).resize(
        (_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0
    )


def hash_of(thumbnail: np.ndarray) -> int:
    """Return the 64-bit difference hash: whether each of 9 x 8 areas is darker than the next.

    (Krawetz, "Kind of like that", 2013.)
    """
    areas = np.asarray(
        Image.fromarray(_luminance(thumbnail)).resize((9, 8), Image.Resampling.BILINEAR)
    )
    margin = _MARGIN * (areas.max() - areas.min())
    bits = np.packbits(areas[:, :-1] + margin < areas[:, 1:])
    return int.from_bytes(bits.tobytes(), "big")


def first_similar(thumbnails: Sequence[np.ndarray], span: float) -> tuple[np.ndarray, int]:
    """Return the position of the first near-duplicate of each image (N,), its own if it has none.

    An image joins the group of the first image that it is like and that is itself the first of a group. So all of a
    group are near-duplicates of its first image: a chain of small changes does not join unlike images.

    Args:
        thumbnails: of the images, in order.
        span: range of the pixels' values.

    Returns:
        The positions, and the number of images that had more than `MOST_CANDIDATES` to compare.
    """
    count = len(thumbnails)
    first, incomplete = np.arange(count), 0
    hashes = np.array([hash_of(each) for each in thumbnails], np.uint64)
    blocks = np.array([_blocks(each) for each in thumbnails], np.float32)
    leaders, hashes_of_leaders, number = np.zeros(count, np.int64), np.zeros_like(hashes), 0
    for position in range(count):
        distances = np.bitwise_count(hashes_of_leaders[:number] ^ hashes[position])
        candidates = leaders[:number][distances <= MAX_BITS]
        compared = candidates[:MOST_CANDIDATES]
        apart = np.abs(blocks[compared] - blocks[position]).max(axis=1, initial=0)
        alike = compared[apart <= MAX_BLOCK * span]
        incomplete += len(candidates) > MOST_CANDIDATES or len(alike) > MOST_ALIKE
        for candidate in alike[:MOST_ALIKE]:
            difference = _luminance(thumbnails[candidate]) - _luminance(thumbnails[position])
            if np.abs(difference).mean() <= MAX_MEAN * span:
                first[position] = candidate
                break
        else:
            leaders[number], hashes_of_leaders[number] = position, hashes[position]
            number += 1
    return first, incomplete


def _luminance(thumbnail: np.ndarray) -> np.ndarray:
    pixels = thumbnail.astype(np.float32)
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels @ _LUMINANCE


def _blocks(thumbnail: np.ndarray) -> np.ndarray:
    """Return the means of the luminance in blocks of 4 x 4 pixels, and of the bands in blocks of 8 x 8, (64 + 16 b,)."""
    luminance = _luminance(thumbnail).reshape(8, 4, 8, 4).mean(axis=(1, 3))
    bands = thumbnail.reshape(4, 8, 4, 8, -1).mean(axis=(1, 3), dtype=np.float32)
    return np.concatenate([luminance.reshape(-1), bands.reshape(-1)])


def find_duplicates(
    count: int, equal: Sequence[Sequence[int]], thumbnails: Mapping[int, np.ndarray], span: float
) -> tuple[np.ndarray | None, int]:
    """Join the images of a data set to the first of their near-duplicates.

    Args:
        count: number of images.
        equal: groups of images whose files are equal; they count as one image.
        thumbnails: of the compared images, by position.
        span: range of the pixels' values.

    Returns:
        `DatasetIndex.duplicate_of`, and the number of images that were compared with all others of these.
    """
    first = np.arange(count, dtype=np.int32)
    for group in equal:
        first[list(group)] = min(group)
    compared: dict[int, np.ndarray] = {}
    for position in sorted(thumbnails):
        compared.setdefault(int(first[position]), thumbnails[position])
    positions = np.array(sorted(compared), np.int32)
    similar, incomplete = first_similar([compared[position] for position in positions], span)
    joined = np.arange(count, dtype=np.int32)
    joined[positions] = positions[similar]
    first = joined[first]
    is_alone = bool((first == np.arange(count)).all())
    return None if is_alone else first, len(thumbnails) - incomplete


def groups_of(first: np.ndarray | None) -> list[list[int]]:
    """Return the groups of more than one image, in order of their first images."""
    groups = defaultdict(list)
    for position, leader in enumerate(() if first is None else first.tolist()):
        groups[leader].append(position)
    return [group for group in groups.values() if len(group) > 1]


def describe(groups: Sequence[Sequence[int]], paths: Sequence[str], checked: int) -> dict[str, Any]:
    """Report groups among `checked` compared images, JSON-ready: their number, the superfluous images, and examples."""
    return {
        "checked": checked,
        "unchecked": len(paths) - checked,
        "groups": len(groups),
        "superfluous": sum(len(group) - 1 for group in groups),
        "examples": [
            [paths[position] for position in group[:_PATHS]] for group in groups[:_EXAMPLES]
        ],
    }


def equal_files(
    source: Source,
    entries: Sequence[Entry],
    threads: int,
    on_progress: Callable[[int, int], None],
) -> tuple[list[list[int]], int]:
    """Find groups of equal files; reads only files of equal sizes, up to `_COMPARED_BYTES`.

    Returns:
        The groups, and the number of files that were compared, by their sizes at least.
    """
    lengths = Counter(entry.length for entry in entries if entry.length > 0)
    candidates = [position for position, entry in enumerate(entries) if lengths[entry.length] > 1]
    if sum(entries[position].length for position in candidates) > _COMPARED_BYTES:
        return [], 0

    def digest(position: int) -> bytes | None:
        try:
            with open_image(source, entries[position]) as file:
                state = hashlib.blake2b(digest_size=16)
                while block := file.read(_READ_BYTES):
                    state.update(block)
                return state.digest()
        except (OSError, ValueError):
            return None  # it changed since its header was read; training reports it

    groups = defaultdict(list)
    with ThreadPoolExecutor(threads, "compare") as pool:
        results = bounded_map(pool, digest, candidates, AHEAD_PER_THREAD * threads)
        for number, (position, value) in enumerate(zip(candidates, results, strict=True), start=1):
            if value is not None:
                groups[value].append(position)
            on_progress(number, len(candidates))
    return [group for group in groups.values() if len(group) > 1], len(entries)
