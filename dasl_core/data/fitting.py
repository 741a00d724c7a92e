"""Check that images have the same bands and comparable values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dasl_core.data.decode import Header
from dasl_core.data.pixel_facts import bands_in_data_set

# Types whose values are shares of the full range: 255 and 65535 are both white. Others have units of their own.
_SHARES = ("uint8", "uint16")


def misfits(headers: Sequence[Header]) -> dict[int, str]:
    """Return, by position, why images do not fit the majority.

    The majority determines the bands (the larger number in a tie); among its images, the majority determines the kind
    of values (unsigned in a tie).
    """
    bands = _majority([bands_in_data_set(header) for header in headers])
    are_shares = _majority(
        [header.dtype in _SHARES for header in headers if bands_in_data_set(header) == bands]
    )
    reasons = {}
    for position, header in enumerate(headers):
        if bands not in (bands_in_data_set(header), header.bands):
            reasons[position] = _other_bands(header.bands, bands)
        elif (header.dtype in _SHARES) != are_shares:
            reasons[position] = _other_values(header.dtype, are_shares)
    return reasons


def _majority(values: Sequence[int]) -> int:
    """Return the most frequent value, the largest in a tie; 0 without values."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=0)


def _other_bands(bands: int, most: int) -> str:
    noun = "band" if bands == 1 else "bands"
    return (
        f"the image has {bands} {noun}, and most images have {most}; "
        f"register images of {bands} {noun} as a data set of their own"
    )


def _other_values(dtype: str, are_shares: int) -> str:
    of_most = (
        "shares of a full range (uint8, uint16)" if are_shares else "in units (int16, float32)"
    )
    its = "in units" if are_shares else "shares of a full range"
    return (
        f"the image has {dtype} values, which are {its}, and those of most images are {of_most}; "
        "they have no common scale: register these images as a data set of their own"
    )
