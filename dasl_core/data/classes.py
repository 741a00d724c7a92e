"""Splits and classes of a data set, as its source names them or as its folders do."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import numpy as np

from dasl_core.data.sources import Entry, Listing, Skipped, SourceRecord
from dasl_core.data.sources.splits import choose_one, folders_of_splits

# Images without a label that a warning names.
_NAMED = 5


def choose_split(record: SourceRecord, listing: Listing) -> tuple[list[Entry], list[Skipped]]:
    """Return the entries of the split that is chosen, and what is skipped of it; all if none is, and there are no splits.

    Raises:
        ValueError: the source has splits and none is chosen, or it does not have the one that is.
    """
    wanted, entries, skipped = record.options.split, listing.entries, listing.skipped
    if record.kind == "huggingface":
        return list(entries), list(skipped)  # the library has chosen
    named = sorted({entry.split for entry in entries if entry.split is not None})
    if wanted is None:
        if len(named) > 1:
            raise ValueError(choose_one(record.uri, named))
        if not named and (splits := folders_of_splits(_names(record, entries))):
            raise ValueError(
                f"{record.uri} is divided into splits, not classes; register each as a data set of its own, "
                f"so that test images stay out of training: {', '.join(f'{record.uri}/{s}' for s in splits)}; "
                f"or choose one of them, such as --split {splits[0]} (source.split in the API)"
            )
        return list(entries), list(skipped)
    if named:
        chosen = [entry for entry in entries if entry.split == wanted]
    else:
        names = _names(record, entries)
        pairs = zip(entries, names, strict=True)
        chosen = [entry for entry, name in pairs if name.startswith(f"{wanted}/")]
        skipped = [each for each in skipped if _may_be_in(record, each.path, wanted)]
        named = sorted({name.partition("/")[0] for name in names if "/" in name})
    if not chosen:
        some = ", ".join(named[:10]) or "none"
        raise ValueError(
            f"{record.uri} has no split {wanted!r}; its splits and folders are: {some}"
        )
    return chosen, list(skipped)


def label_entries(
    record: SourceRecord, entries: Sequence[Entry]
) -> tuple[np.ndarray | None, list[str], list[int]]:
    """Return the labels (N,) int32 of the entries that are kept, the names of the classes, and their positions.

    Raises:
        ValueError: `classes` names a class that the source does not have, or none of its images has a class.
    """
    everything = list(range(len(entries)))
    options = record.options
    names = None if options.labels == "none" else _class_of_each(record, entries)
    if options.classes is not None:
        if names is None:
            raise ValueError(f"{record.uri} has no classes to choose from, and classes names some")
        if missing := sorted({*options.classes} - {*names}):
            raise ValueError(f"{record.uri} has no class {missing[0]!r}, which classes names")
        everything = [each for each in everything if names[each] in options.classes]
        names = [names[each] for each in everything]
    if names is None:
        return None, [], everything
    class_names = sorted({*names})
    if len(class_names) < 2:
        return None, [], everything
    number = {name: index for index, name in enumerate(class_names)}
    return np.array([number[name] for name in names], np.int32), class_names, everything


def warnings_of_labels(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Return a sentence if labels of the source are not used because some images have none."""
    if record.options.labels == "none":
        return []
    unlabeled = [entry.key for entry in entries if not entry.label]
    if not unlabeled or len(unlabeled) == len(entries):
        return []
    noun, verb = ("image", "has") if len(unlabeled) == 1 else ("images", "have")
    some = ", ".join(unlabeled[:_NAMED]) + (", ..." if len(unlabeled) > _NAMED else "")
    return [
        f"{len(unlabeled)} {noun} of {len(entries)} {verb} no label ({some}), so that the data set has none. Label or "
        "remove them and refresh the data set, or register it without labels"
    ]


def _may_be_in(record: SourceRecord, path: str, split: str) -> bool:
    """Whether what is skipped may belong to a folder that is a split; false for what is in another folder."""
    if (
        len(record.files) > 1 or path in record.files
    ):  # an archive, or a path that begins with its name
        return True
    return f"{path}/".startswith(f"{split}/")


def _class_of_each(record: SourceRecord, entries: Sequence[Entry]) -> list[str] | None:
    """Return the class of each entry; None if one has none."""
    if any(entry.label for entry in entries):
        given = [entry.label for entry in entries if entry.label]
        return given if len(given) == len(entries) else None
    prefix = f"{record.options.split}/" if record.options.split is not None else ""
    keys = [name.removeprefix(prefix) for name in _names(record, entries)]
    if record.kind in ("list", "parquet", "huggingface", "npy") or any("/" not in k for k in keys):
        return None
    return [key.partition("/")[0] for key in keys]


def _names(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Return the keys without the names of archives, of which there may be several."""
    if record.kind not in ("tar", "zip") or len(record.files) < 2:
        return [entry.key for entry in entries]
    prefixes = [f"{posixpath.splitext(file)[0]}/" for file in record.files]
    return [entry.key.removeprefix(prefixes[entry.file]) for entry in entries]
