"""The split of a data set into training and held-out images."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasl_core.data.groups import group_names
from dasl_core.data.index import DatasetIndex
from dasl_core.data.strings import Strings
from dasl_core.spec import Holdout


@dataclass(frozen=True)
class Split:
    """Positions in an index, each sorted ascending, int64.

    Attributes:
        groups: number of named groups; 0 unless groups are held out.
        held_out_groups: how many of them are held out.
        duplicates: number of images that have a near-duplicate.
        moved: number of images on another side than by their own names, because a near-duplicate is there.
        straddling: number of held-out images with a near-duplicate among the training images.
    """

    train: np.ndarray
    held_out: np.ndarray
    groups: int = 0
    held_out_groups: int = 0
    duplicates: int = 0
    moved: int = 0
    straddling: int = 0


def split(index: DatasetIndex, holdout: Holdout | None) -> Split:
    """Hold out a share of the images, the classes or named groups, by a hash of their names; None holds out none.

    The choice does not depend on the seed or on the order of files, so that runs with different
    seeds are evaluated on the same images, and a larger share contains a smaller one. By image, near-duplicates
    go where the first of them goes.

    Raises:
        ValueError: classes are held out of a data set that has fewer than two, or groups of one without.
    """
    held_out, facts = np.zeros(len(index), dtype=bool), {}
    first = index.duplicate_of
    if holdout is None:
        pass
    elif holdout.by == "image":
        own = _hold_out(index.paths, np.arange(len(index)), holdout.fraction)
        held_out = own if first is None else _hold_out(index.paths, first, holdout.fraction)
        facts["moved"] = int((held_out != own).sum())
    elif holdout.by == "group":
        assert holdout.group is not None, "checked by Holdout"
        of_images = group_names(index, holdout.group)
        numbers = {name: number for number, name in enumerate(sorted({*of_images}))}
        names, groups = [*numbers], np.array([numbers[name] for name in of_images])
        at_least_one = max(holdout.fraction, 1 / len(index))
        held_out = _hold_out(names, groups, at_least_one)
        facts |= {"groups": len(names), "held_out_groups": len(np.unique(groups[held_out]))}
    else:
        if index.labels is None or len(index.class_names) < 2:
            raise ValueError("evaluate.holdout.by is 'class', but the data set has no classes")
        order = _by_hash(index.class_names)
        held_out = np.isin(index.labels, order[: round(holdout.fraction * len(order))])
    if first is not None:
        sizes = np.bincount(first, minlength=len(index))
        facts["duplicates"] = int((sizes[first] > 1).sum())
        of_training = np.bincount(first[~held_out], minlength=len(index)) > 0
        facts["straddling"] = int(of_training[first[held_out]].sum())
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out), **facts)


def labeled(index: DatasetIndex, images: np.ndarray, share: float) -> np.ndarray:
    """Choose a share of images with equally many of each class, or all of a class that has fewer.

    By a hash of their names, as a holdout: a larger share contains a smaller one. There are at least two images, and one
    of each class.

    Args:
        images: positions in the index, ascending.

    Returns:
        Positions in `images`, ascending.
    """
    assert index.labels is not None
    labels = index.labels[images]
    _, counts = np.unique(labels, return_counts=True)
    each = max(-(-2 // len(counts)), round(share * len(images) / len(counts)))
    order = _by_hash([index.paths[image] for image in images])
    order = order[labels[order].argsort(kind="stable")]
    place_in_class = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(order[place_in_class < each])


def holdout_events(
    name: str, index: DatasetIndex, holdout: Holdout, parts: Split
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the events (type, message, data) about the groups and near-duplicates of the data set `name`."""
    events: list[tuple[str, str, dict[str, Any]]] = []
    images = f"the {len(index)} images of {name}"
    if holdout.group is not None:
        message = (
            f"{parts.held_out_groups} of {parts.groups} groups by {holdout.group.describe()} are held out: "
            f"{len(parts.held_out)} of {images}"
        )
        groups = {"groups": parts.groups, "held_out": parts.held_out_groups}
        events.append(("groups_held_out", message, {"dataset": name, **groups}))
    unchecked = index.duplicates.get("similar", {}).get("unchecked", 0)
    message = f"{parts.duplicates} of {images} have near-duplicates"
    missing = f"; {unchecked} images were not compared" if unchecked else ""
    data = {"dataset": name, "images": parts.duplicates, "unchecked": unchecked}
    if parts.straddling:
        message += (
            f", and {parts.straddling} held-out ones have them among the training images: these are easier to find or "
            f"to classify than new ones{missing}"
        )
        if holdout.by == "class":
            message += ". evaluate.holdout.by: image keeps near-duplicates together"
        events.append(("near_duplicates_split", message, data | {"straddling": parts.straddling}))
    elif parts.duplicates or unchecked:
        if parts.duplicates:
            message += ", which are held out or trained on together"
        message += f"; {parts.moved} images changed sides for it, and {len(parts.held_out)} are held out{missing}"
        events.append(("near_duplicates_kept", message, data | {"moved": parts.moved}))
    return events


def _hold_out(names: Sequence[str], groups: np.ndarray, fraction: float) -> np.ndarray:
    """Hold out whole groups, in the order of the hashes of their names, until a share of the images is reached.

    Args:
        names: sorted names, of which some groups have one each.
        groups: position in `names` for each image, (N,).

    Returns:
        Whether each image is held out, (N,) bool. Unless each image is a group, at least one group is not.
    """
    sizes = np.bincount(groups, minlength=len(names))
    order = _by_hash(names)
    order = order[sizes[order] > 0]
    # Groups of more than a tenth come last, so that one of them rarely becomes the whole holdout.
    order = order[(10 * sizes[order] > len(groups)).argsort(kind="stable")]
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < round(fraction * len(groups))]
    if len(order) < len(groups):
        chosen = chosen[: len(order) - 1]
    return np.isin(groups, chosen)


def _by_hash(names: Sequence[str]) -> np.ndarray:
    """Return the positions of sorted names, in the order of their hashes."""
    packed = Strings.pack(names)
    digests = bytearray()
    for chunk in packed.encoded_in_chunks(np.arange(len(packed))):
        digests += b"".join([hashlib.blake2b(name, digest_size=8).digest() for name in chunk])
    # Names are sorted, so a stable sort breaks ties by name.
    return np.frombuffer(digests, ">u8").astype(np.uint64).argsort(kind="stable")
