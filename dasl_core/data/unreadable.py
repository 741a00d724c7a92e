"""Tolerance for images that were intact at ingest and can no longer be read."""

import os
from collections.abc import Mapping
from typing import Any

from dasl_core.data.decode.reasons import CHANGED
from dasl_core.data.index import DatasetIndex

# Up to this share of a large data set, training replaces unreadable images by black ones:
# one in a hundred changes a representation less than another seed does, and large data sets always
# have some broken files.
TOLERATED_SHARE = 0.01
# In a small data set up to this many images are tolerated, as a hundredth may be less than one image, ...
TOLERATED_IMAGES = 10
# ... but never more than this share of it.
TOLERATED_SHARE_OF_SMALL = 0.1
# Maximum number of paths in an event.
PATHS_REPORTED = 100


def too_many(unreadable: int, images: int) -> bool:
    """Whether a run must fail because this many of its images cannot be read.

    Up to 100 images, a tenth may be missing; up to 1000, ten images; above, a hundredth.
    """
    limit_of_small = min(float(TOLERATED_IMAGES), TOLERATED_SHARE_OF_SMALL * images)
    return unreadable > max(limit_of_small, TOLERATED_SHARE * images)


def unreadable_error(name: str, index: DatasetIndex, unreadable: Mapping[int, str]) -> str:
    """Message of the error of a run with too many unreadable images of a data set, by position, with the remedy."""
    images, example = _describe(name, index, unreadable)
    where = index.location
    if CHANGED in unreadable.values():
        return f"{images} have changed or can no longer be read, {example}; refresh the data set and submit the job again"
    remedy = f"mount or restore {where}, or remove the data set and register its folder again"
    if "://" not in where and not os.path.exists(where):
        return (
            f"the folder {where} of the data set {name!r} is missing, with {len(unreadable)} of "
            f"its {len(index)} images, {example}; {remedy}"
        )
    return f"{images} can no longer be read, {example}; {remedy}"


def damaged_event(
    name: str, index: DatasetIndex, damaged: Mapping[int, str]
) -> tuple[str, dict[str, Any]]:
    """Message and data of the event `images_damaged`."""
    images, example = _describe(name, index, damaged)
    reported = [
        {"path": index.paths[position], "reason": damaged[position]}
        for position in sorted(damaged)[:PATHS_REPORTED]
    ]
    message = f"{images} cannot be decoded and are left out, {example}"
    return message, {"dataset": name, "count": len(damaged), "images": reported}


def unreadable_event(
    name: str, index: DatasetIndex, unreadable: Mapping[int, str]
) -> tuple[str, dict[str, Any]]:
    """Message and data of the event `images_unreadable`."""
    images, example = _describe(name, index, unreadable)
    paths = [index.paths[position] for position in sorted(unreadable)[:PATHS_REPORTED]]
    message = f"{images} can no longer be read and are replaced by black ones, {example}"
    return message, {"dataset": name, "count": len(unreadable), "images": paths}


def _describe(name: str, index: DatasetIndex, reasons: Mapping[int, str]) -> tuple[str, str]:
    """Return the number of images, and the first one as an example, as parts of a sentence."""
    first = min(reasons)
    images = f"{len(reasons)} of the {len(index)} images of the data set {name!r}"
    return images, f"such as {index.paths[first]} ({reasons[first]})"
