"""Splits and classes of a data set, from its source or its folders."""

import posixpath
from collections.abc import Sequence

import numpy as np

from dasl_core.data.sources import Entry, Listing, Skipped, SourceRecord
from dasl_core.data.sources.splits import choose_one, split_folders

_NAMED = 5


def choose_split(record: SourceRecord, listing: Listing) -> tuple[list[Entry], list[Skipped]]:
    """Select the entries and skipped files of the requested split; all if the source has no splits.

    Raises:
        ValueError: the source has splits and none is requested, or it lacks the requested one.
    """
    split, entries, skipped = record.options.split, listing.entries, listing.skipped
    if record.source_class.chooses_split:
        return list(entries), list(skipped)
    named = sorted({entry.split for entry in entries if entry.split is not None})
    if split is None:
        if len(named) > 1:
            raise ValueError(choose_one(record.uri, named))
        if not named and (splits := split_folders(_names(record, entries))):
            raise ValueError(
                f"{record.uri} is divided into splits, not classes; register each as a data set of its own, "
                f"so that test images stay out of training: {', '.join(f'{record.uri}/{s}' for s in splits)}; "
                f"or choose one of them, such as --split {splits[0]} (source.split in the API)"
            )
        return list(entries), list(skipped)
    if named:
        selected = [entry for entry in entries if entry.split == split]
    else:
        names = _names(record, entries)
        pairs = zip(entries, names, strict=True)
        selected = [entry for entry, name in pairs if name.startswith(f"{split}/")]
        skipped = [item for item in skipped if _may_be_in(record, item.path, split)]
        named = sorted({name.partition("/")[0] for name in names if "/" in name})
    if not selected:
        some = ", ".join(named[:10]) or "none"
        raise ValueError(f"{record.uri} has no split {split!r}; its splits and folders are: {some}")
    return selected, list(skipped)


def label_entries(
    record: SourceRecord, entries: Sequence[Entry]
) -> tuple[np.ndarray | None, list[str], list[int]]:
    """Return labels (N,) int32, class names, and the positions of the entries in these classes.

    Raises:
        ValueError: `classes` names a class that the source does not have, or none of its images has a class.
    """
    everything = list(range(len(entries)))
    options = record.options
    names = None if options.labels == "none" else _entry_classes(record, entries)
    if options.classes is not None:
        if names is None:
            raise ValueError(f"{record.uri} has no classes to choose from, and classes names some")
        if missing := sorted({*options.classes} - {*names}):
            raise ValueError(f"{record.uri} has no class {missing[0]!r}, which classes names")
        everything = [position for position in everything if names[position] in options.classes]
        names = [names[position] for position in everything]
    if names is None:
        return None, [], everything
    class_names = sorted({*names})
    if len(class_names) < 2:
        return None, [], everything
    number = {name: index for index, name in enumerate(class_names)}
    return np.array([number[name] for name in names], np.int32), class_names, everything


def label_warnings(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Warn if labels of the source or folders are unused because some images have none."""
    if record.options.labels == "none":
        return []
    unlabeled = [entry.key for entry in entries if not entry.label]
    if len(unlabeled) == len(entries):
        return _folder_warnings(record, entries)
    if not unlabeled:
        return []
    verb = "has" if len(unlabeled) == 1 else "have"
    return [
        f"{_count(unlabeled, entries)} {verb} no label ({_some(unlabeled)}), so that the data set has none. Label or "
        "remove them and refresh the data set, or register it without labels"
    ]


def _folder_warnings(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Warn if a few images outside of the class folders prevent their use as classes."""
    if not record.source_class.has_folders:
        return []
    keys = _keys_in_split(record, entries)
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    outside = [entry.key for entry, key in zip(entries, keys, strict=True) if "/" not in key]
    # If most images are outside of the folders, these are not classes.
    if len(folders) < 2 or not 0 < len(outside) < len(keys) - len(outside):
        return []
    verb = "is" if len(outside) == 1 else "are"
    return [
        f"{_count(outside, entries)} {verb} outside of the {len(folders)} folders ({_some(outside)}), so the folders are not "
        "used as labels. To use them, move or remove these images and read the data set again (dasl datasets refresh)"
    ]


def _count(some: Sequence[str], entries: Sequence[Entry]) -> str:
    return f"{len(some)} {'image' if len(some) == 1 else 'images'} of {len(entries)}"


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_NAMED]) + (", ..." if len(keys) > _NAMED else "")


def _may_be_in(record: SourceRecord, path: str, split: str) -> bool:
    """Whether a skipped path may belong to a split; false if it is in another folder."""
    # An archive, or a path that begins with its name.
    is_of_archive = len(record.files) > 1 or path in record.files
    return is_of_archive or f"{path}/".startswith(f"{split}/")


def _entry_classes(record: SourceRecord, entries: Sequence[Entry]) -> list[str] | None:
    """Return the class of each entry; None if one has none."""
    if any(entry.label for entry in entries):
        labels = [entry.label for entry in entries if entry.label]
        return labels if len(labels) == len(entries) else None
    keys = _keys_in_split(record, entries)
    if not record.source_class.has_folders or any("/" not in key for key in keys):
        return None
    return [key.partition("/")[0] for key in keys]


def _keys_in_split(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Return the keys relative to the folder of the requested split, if any, and to an only folder around all others."""
    prefix = f"{record.options.split}/" if record.options.split is not None else ""
    keys = [name.removeprefix(prefix) for name in _names(record, entries)]
    around = posixpath.commonprefix([f"{posixpath.dirname(key)}/" for key in keys])
    around = around[: around.rfind("/") + 1]
    return [key.removeprefix(around) for key in keys]


def _names(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Return the keys without the names of archives."""
    if not record.source_class.has_folders or len(record.files) < 2:
        return [entry.key for entry in entries]
    prefixes = [f"{posixpath.splitext(file)[0]}/" for file in record.files]
    return [entry.key.removeprefix(prefixes[entry.file]) for entry in entries]
