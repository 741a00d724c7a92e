"""Warnings of images and labels that are usable, but probably not what their user means."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from posixpath import basename, dirname, join

import numpy as np

from dasl_core.data.decode import Header
from dasl_core.data.decode.npy import FEW_BANDS
from dasl_core.data.sources.splits import IMAGE_OF, MASK_OF, folders_of_tests, image_folders


def doubts(
    paths: Sequence[str],
    labels: np.ndarray | None,
    class_names: Sequence[str],
    equal: Sequence[Sequence[int]],
) -> list[str]:
    """Return warnings of masks and test images among the images, and of doubtful classes.

    Args:
        labels: class of each image, (N,), or None.
        equal: positions of equal images, in groups.
    """
    warnings = []
    inside: defaultdict[str, set[str]] = defaultdict(set)
    directly = {dirname(path) for path in paths}
    for folder in {folder for each in directly for folder in _folders_of(f"{each}/")}:
        inside[dirname(folder)].add(basename(folder))
    tests = {
        join(outer, name) for outer, names in inside.items() for name in folders_of_tests(names)
    }
    if tests:
        warnings.append(
            f"{len(_below(paths, tests))} of {len(paths)} images are in folders of test images, such as {min(tests)}, and are "
            "trained on as the others are. Move them elsewhere, or register a .csv list of the images with a column split"
        )
    if masks := _find_masks(paths, inside):
        warnings.append(
            f"{len(masks)} of {len(paths)} images are masks or labels of others by their names, such as {masks[0]}, and are "
            "trained on as the others are. Move them elsewhere, or register a .csv list of the images"
        )
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in class_names:
        key = " ".join(name.replace("_", " ").casefold().split())
        with suppress(ValueError):
            key = str(float(key))  # 0 and 0.0
        alike[key].append(name)
    if twice := [names for names in alike.values() if len(names) > 1]:
        what = "1 name of a class is" if len(twice) == 1 else f"{len(twice)} names of classes are"
        warnings.append(
            f"{what} written in several ways, such as {twice[0][0]!r} and {twice[0][1]!r}, each of which is a class. "
            "Write them in one way if they mean one class"
        )
    if labels is not None:
        labeled = [[(class_names[labels[at]], paths[at]) for at in group] for group in equal]
        if several := [group for group in labeled if len({label for label, _ in group}) > 1]:
            some = " and ".join(
                f"{path} ({label})" for label, path in sorted(several[0])[:: len(several[0]) - 1]
            )
            what = "1 image that occurs several times is"
            if len(several) > 1:
                what = f"{len(several)} of the images that occur several times are"
            warnings.append(
                f"{what} in several classes, such as {some}. Remove the wrong ones and refresh the data set"
            )
    return warnings


def axis_doubts(paths: Sequence[str], headers: Sequence[Header]) -> Iterator[str]:
    """Warn of arrays whose last axis may not be that of bands: it is no shorter than half of another."""
    arrays = [
        (path, height, width, bands)
        for path, (width, height, bands, *_) in zip(paths, headers, strict=True)
        if path.lower().endswith(".npy") and 2 * bands >= min(width, height) and bands > FEW_BANDS
    ]
    if arrays:
        path, *shape = arrays[0]
        yield (
            f"{len(arrays)} arrays, such as {path}, are read as images (H, W, bands) = {(*shape,)}. If their bands come "
            "first, move them to the last axis with numpy.moveaxis. If files in a folder are stacks of images (N, H, W), "
            "register each file itself as a data set"
        )


def _folders_of(path: str) -> Iterator[str]:
    """Yield the folders that a path is in."""
    while path := dirname(path).rstrip("/"):
        yield path


def _below(paths: Sequence[str], folders: Set[str]) -> list[str]:
    """Return the paths below some folders."""
    return [path for path in paths if folders and not folders.isdisjoint(_folders_of(path))]


def _find_masks(paths: Sequence[str], inside: Mapping[str, Set[str]]) -> list[str]:
    """Find the images that are masks of others: `a_mask.png` beside `a.jpg`, or `a/masks` beside `a/images`."""
    folders: set[str] = set()
    for outer, names in inside.items():
        if images := image_folders(names):
            folders |= {join(outer, name) for name in names - {*images}}
    bases = {match[1] for path in paths if (match := MASK_OF.fullmatch(path))}
    if bases:
        bases.intersection_update(m[1] for path in paths if (m := IMAGE_OF.fullmatch(path)))
    named = (path for path in paths if (m := MASK_OF.fullmatch(path)) and m[1] in bases)
    return sorted({*_below(paths, folders), *named})
