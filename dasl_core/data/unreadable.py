"""Tolerance for images that were intact at ingest and can no longer be read."""

from collections.abc import Mapping
from typing import Any

from dasl_core.data.index import DatasetIndex

# Training continues with black images in place of unreadable ones up to this share of a large data
# set: one in a hundred changes a representation less than another seed does, and among very many files
# a few always break.
TOLERATED_SHARE = 0.01
# A hundredth of a small data set is less than one image, for which no run should fail. So up to this
# many are tolerated, ...
TOLERATED_IMAGES = 10
# ... but never more than this share: of twenty images, ten are not a few.
TOLERATED_SHARE_OF_FEW = 0.1
# Paths that an event or the log names.
PATHS_REPORTED = 100


def too_many(unreadable: int, images: int) -> bool:
    """Whether a run must fail because this many of its images cannot be read.

    Up to 100 images, a tenth may be missing; up to 1000, ten images; above, a hundredth.
    """
    few = min(float(TOLERATED_IMAGES), TOLERATED_SHARE_OF_FEW * images)
    return unreadable > max(few, TOLERATED_SHARE * images)


def refusal(name: str, index: DatasetIndex, unreadable: Mapping[int, str]) -> str:
    """The error of a run with too many unreadable images, with the remedy.

    Args:
        name: of the data set.
        unreadable: the reason for each image, by its position in the index.
    """
    first = min(unreadable)
    remedy = f"mount or restore {index.root}, or remove the data set and register its folder again"
    if not index.root.is_dir():
        return (
            f"the folder of the data set {name!r} is gone: all of {index.root} and with it "
            f"{len(unreadable)} of its {len(index)} images, such as {index.paths[first]} "
            f"({unreadable[first]}); {remedy}"
        )
    return (
        f"{len(unreadable)} of the {len(index)} images of the data set {name!r} can no longer be "
        f"read, such as {index.paths[first]} ({unreadable[first]}); {remedy}"
    )


def notice(
    name: str, index: DatasetIndex, unreadable: Mapping[int, str]
) -> tuple[str, dict[str, Any]]:
    """Message and data of the event `images_unreadable`."""
    first = min(unreadable)
    message = (
        f"{len(unreadable)} of the {len(index)} images of the data set {name!r} can no longer be "
        f"read and are black, such as {index.paths[first]} ({unreadable[first]})"
    )
    paths = [index.paths[position] for position in sorted(unreadable)[:PATHS_REPORTED]]
    return message, {"dataset": name, "count": len(unreadable), "images": paths}
