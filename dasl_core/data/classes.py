"""Splits and classes of a data set, from its source or its folders."""

import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dasl_core.data.sources import Entry, Listing, Skipped, SourceRecord
from dasl_core.data.sources.splits import choose_one, image_folders, split_folders
from dasl_core.spec.source import LONGEST_NAME, READ_OPTIONS
from dasl_core.text import cut

_NAMED, _COLUMNS = 5, 20
# Columns, and endings of files beside images, that may hold labels.
_LIKE_LABELS = re.compile("label|class|categor|species|diagnos|target", re.IGNORECASE)
_LABEL_FILES = {".cls", ".csv", ".tsv", ".json", ".jsonl", ".txt", ".xls", ".xlsx", ".xml"}


def choose_split(record: SourceRecord, listing: Listing) -> tuple[list[Entry], list[Skipped]]:
    """Select the entries and skipped files of the requested split; all if the source has no splits.

    Raises:
        ValueError: the source has splits and none is requested, or it lacks the requested one.
    """
    split, entries, skipped = record.options.split, listing.entries, [*listing.skipped]
    if record.source_class.chooses_split:
        return entries, skipped
    named = sorted({entry.split for entry in entries if entry.split is not None})
    if split is None:
        if len(named) > 1:
            raise ValueError(choose_one(record.uri, named))
        if not named and (splits := split_folders(_names(record, entries))):
            raise ValueError(choose_one(record.uri, splits))
    elif named:
        entries = [entry for entry in entries if entry.split == split]
    else:
        names = _names(record, entries)
        pairs = zip(entries, names, strict=True)
        entries = [entry for entry, name in pairs if name.startswith(f"{split}/")]
        skipped = [item for item in skipped if _may_be_in(record, item.path, split)]
        named = sorted({name.partition("/")[0] for name in names if "/" in name})
    if split is not None and not entries:
        some = ", ".join(named[:10]) or "none"
        raise ValueError(f"{record.uri} has no split {split!r}; its splits and folders are: {some}")
    _refuse_masks(record, entries)
    return entries, skipped


def _refuse_masks(record: SourceRecord, entries: Sequence[Entry]) -> None:
    """Raise a ValueError if the first-level folders are those of images and of their masks; not if `classes` names them."""
    if record.options.classes is None and record.source_class.has_folders and entries:
        around, folders = _folders(record, entries)
        folders = sorted({*folders} - {""})
        for images in image_folders({*folders}):
            raise ValueError(
                f"{record.uri} has the folders {', '.join(folders)}, which are no classes but images and what "
                f"belongs to them, such as masks; choose the images with --split {around}{images} (source.split in the "
                "API). If they are classes, name them with --classes"
            )


def label_entries(
    record: SourceRecord, entries: Sequence[Entry]
) -> tuple[np.ndarray | None, list[str], list[int]]:
    """Return labels (N,) int32, class names, and the positions of the entries in these classes.

    Names are compared, and returned, in the Unicode form NFC.

    Raises:
        ValueError: `classes` names a class that the source does not have, none of its images has a class, or two
            folders differ only in the Unicode form of their names, or a name is too long.
    """
    everything = list(range(len(entries)))
    options = record.options
    names = None if options.labels == "none" else _entry_classes(record, entries)
    if options.classes is not None:
        wanted = {unicodedata.normalize("NFC", name) for name in options.classes}
        if names is None:
            raise ValueError(f"{record.uri} has no classes to choose from, and classes names some")
        if missing := sorted(wanted - {*names}):
            raise ValueError(f"{record.uri} has no class {missing[0]!r}, which classes names")
        everything = [position for position in everything if names[position] in wanted]
        names = [names[position] for position in everything]
    if names is None:
        return None, [], everything
    class_names = sorted({*names})
    if longest := next((name for name in class_names if len(name) > LONGEST_NAME), None):
        raise ValueError(
            f"{record.uri} has a label of {len(longest)} characters, {cut(longest, 40)!r}, and a class's name has at most "
            f"{LONGEST_NAME}. Name the column of the classes (--label-column), or read no labels (--no-labels)"
        )
    if len(class_names) < 2:
        return None, [], everything
    number = {name: index for index, name in enumerate(class_names)}
    return np.array([number[name] for name in names], np.int32), class_names, everything


def why_unlabeled(record: SourceRecord, entries: Sequence[Entry], listing: Listing) -> str:
    """Return why entries have no labels, and where labels may be, as a sentence without its period."""
    options, (what, read) = record.options, READ_OPTIONS[record.kind]
    if options.labels == "none":
        return "the data set was registered without them"
    if len(options.classes or ()) == 1:
        return "one class was chosen"
    unlabeled = [entry.key for entry in entries if not entry.label]
    if not unlabeled:
        return f"all images are of one class, {entries[0].label}"
    if len(unlabeled) < len(entries):
        verb = "has" if len(unlabeled) == 1 else "have"
        advice = "Label or remove them and refresh the data set"
        return f"{_count(unlabeled, entries)} {verb} no label ({_some(unlabeled)}). {advice}"
    if record.source_class.has_folders:
        files = listing.ignored.describe(_LABEL_FILES)
        unread = f". Files that may have labels are not read: {files}. A list (.csv) is registered by its own path"
        return _why_no_folders(record, entries) + (unread if files else "")
    if "label_column" not in read:
        return f"{what} has none. A list (.csv) with the columns path and label has them"
    if options.label_column is not None:
        return f"the column {options.label_column} is empty"
    columns = listing.unused_columns
    likely = ", ".join(filter(_LIKE_LABELS.search, columns)) or ", ".join(columns[:_COLUMNS])
    return "no column is called label, or it is empty" + (
        f". Call the column of the labels label, or name it, such as {likely}, with dasl datasets add --label-column"
        if likely
        else ""
    )


def _why_no_folders(record: SourceRecord, entries: Sequence[Entry]) -> str:
    _, folders = _folders(record, entries)
    outside = [entry.key for entry, folder in zip(entries, folders, strict=True) if not folder]
    if len(record.files) > 1 and len(outside) == len(entries):
        return (
            f"the names of archives, such as {record.files[0]}, are none. If they are classes, unpack each archive into a "
            "folder of its name, and use the folder around these"
        )
    if len({*folders} - {""}) < 2:
        return "all images are in one folder" + ", or in one inside" * (len(outside) < len(entries))
    verb = "is" if len(outside) == 1 else "are"
    return (
        f"{_count(outside, entries)} {verb} outside of the {len({*folders}) - 1} folders ({_some(outside)}). To use the folders "
        "as labels, move or remove these images and read the data set again (dasl datasets refresh)"
    )


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
        labels = [unicodedata.normalize("NFC", entry.label) for entry in entries if entry.label]
        return labels if len(labels) == len(entries) else None
    _, folders = _folders(record, entries)
    if not record.source_class.has_folders or "" in folders:
        return None
    names = {folder: unicodedata.normalize("NFC", folder) for folder in folders}
    if twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise ValueError(
            f"{record.uri} has two folders {twice[0]!r}, whose names differ only in their Unicode form (NFC and NFD). "
            "Move the images of one into the other"
        )
    return [names[folder] for folder in folders]


def _folders(record: SourceRecord, entries: Sequence[Entry]) -> tuple[str, list[str]]:
    """Return the folder around all images, and the name of the folder in it of each, "" for none.

    It is that of the requested split, if any, and the only folders in it.
    """
    names = _names(record, entries)
    around = posixpath.commonprefix([f"{posixpath.dirname(name)}/" for name in names])
    around = around[: around.rfind("/") + 1]
    inside = (name.removeprefix(around) for name in names)
    return around, [name.partition("/")[0] if "/" in name else "" for name in inside]


def _names(record: SourceRecord, entries: Sequence[Entry]) -> list[str]:
    """Return the keys without the names of archives."""
    if not record.source_class.has_folders or len(record.files) < 2:
        return [entry.key for entry in entries]
    prefixes = [f"{posixpath.splitext(file)[0]}/" for file in record.files]
    return [entry.key.removeprefix(prefixes[entry.file]) for entry in entries]
