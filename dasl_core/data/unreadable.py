"""What to do about images that were whole when they were ingested and can no longer be read."""

from collections.abc import Mapping
from typing import Any

from dasl_core.data.index import DatasetIndex

# Training goes on with black images in place of unreadable ones as long as they are no more than this
# share of a large data set: one in a hundred changes a representation less than another seed does,
# and among very many files a few always break.
BEARABLE_SHARE = 0.01
# A hundredth of a small data set is less than one image, and a run is not worth losing for one. So
# up to this many are borne, ...
BEARABLE_IMAGES = 10
# ... but never more than this share: of twenty images, ten are not a few.
BEARABLE_SHARE_OF_FEW = 0.1
# Paths that an event names.
PATHS_TOLD = 100


def too_many(unreadable: int, images: int) -> bool:
    """Whether a run without so many of its images would not be what its owner asked for.

    Up to 100 images a tenth may be missing, up to 1000 ten images, of more a hundredth.
    """
    few = min(float(BEARABLE_IMAGES), BEARABLE_SHARE_OF_FEW * images)
    return unreadable > max(few, BEARABLE_SHARE * images)


def refusal(name: str, index: DatasetIndex, unreadable: Mapping[int, str]) -> str:
    """Why a run on the data set `name` cannot begin or go on, and what a person can do.

    Args:
        unreadable: position in the index: why it cannot be read.
    """
    first = min(unreadable)
    remedy = f"mount or restore {index.root}, or remove the data set and register its folder anew"
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
    paths = [index.paths[position] for position in sorted(unreadable)[:PATHS_TOLD]]
    return message, {"dataset": name, "count": len(unreadable), "images": paths}
