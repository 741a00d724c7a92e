"""Data sets of the Hugging Face hub, and those saved by `datasets`."""

import io
import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from dasl_core.data.decode.reasons import optional_module
from dasl_core.data.sources.base import (
    Entry,
    Lister,
    Listing,
    OnListed,
    Source,
    SourceRecord,
    class_name,
)
from dasl_core.data.sources.splits import choose_one
from dasl_core.spec.locations import ReadableFolders
from dasl_core.spec.source import remote_scheme
from dasl_core.storage import LocalStorage, check_location, check_tree

# Files written by `Dataset.save_to_disk`.
SAVED_FILES = ("dataset_info.json", "state.json")

_NEEDS = "the images are a Hugging Face data set"
_SPLITS = "dataset_dict.json"
_MOST_JSON = 64 << 20  # names of a million classes
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class HuggingFaceSource(Source, kind="huggingface"):
    """The images of one split of a data set that the library `datasets` loads.

    Its URI is ``hf://owner/name``, with ``?config=NAME&revision=NAME`` if needed; or the folder of a saved data set,
    which may name files elsewhere.
    """

    chooses_split = True
    deciding_options = ("image_column", "split")

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        check_location(record.uri, allowed)
        check_tree(record.uri, allowed)
        self._library = optional_module("datasets", _NEEDS, "huggingface")
        self.uri, self.allowed, self.options = record.uri, allowed, record.options

    @classmethod
    def is_at(cls, location: str) -> bool:
        if remote_scheme(location) is not None:
            return location.lower().startswith("hf://") and ".parquet" not in location
        folder = Path(location)
        return (
            all((folder / name).is_file() for name in SAVED_FILES) or (folder / _SPLITS).is_file()
        )

    def list_entries(self, on_listed: OnListed) -> Listing:
        table, image = self._table
        lister = Lister(on_listed)
        label, group = lister.choose_columns(self.uri, table.column_names, image, self.options)
        names = getattr(table.features[label], "names", ()) if label is not None else ()
        labels = self._texts(table, label, "no label; name another column, or use --no-labels")
        groups = self._texts(table, group, "no group; name another column")
        digits = len(str(len(table)))
        stamp = int.from_bytes(table._fingerprint.encode()[:7], "little")
        for position, (value, group_value) in enumerate(zip(labels, groups, strict=True)):
            names_of = class_name(value, names), None, class_name(group_value, ())
            lister.add(Entry(f"{position:0{digits}}", -1, stamp, 0, position, *names_of))
        return lister.listing()

    def _texts(self, table: Any, column: str | None, refusal: str) -> list[Any]:
        """Return the values of a column of labels or groups, which name no files."""
        if column is None:
            return [None] * len(table)
        feature = table.features[column]
        if not isinstance(feature, self._library.Value | self._library.ClassLabel):
            kind = type(feature).__name__
            raise ValueError(f"{self.uri}: column {column!r}, of the type {kind}, is {refusal}")
        return list(table.data.column(column).to_pylist())

    def open(self, entry: Entry) -> BinaryIO:
        table, column = self._table
        # The stored value, of this column alone: the library reads whatever file or address an image names.
        value = table.data.column(column)[entry.offset].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        path = value.get("path") if isinstance(value, dict) else value
        if isinstance(path, str) and path and not isinstance(content, bytes):
            folder, name = os.path.split(os.path.abspath(path))
            return LocalStorage(folder, "follow", self.allowed).open(name)
        if not isinstance(content, bytes):
            raise ValueError("the row has no image")
        return io.BytesIO(content)

    @cached_property
    def _table(self) -> tuple[Any, str]:
        """The table and its column of images, of which nothing is to be read by the library: it decodes them."""
        if remote_scheme(self.uri) is None:
            table = self._load_saved()
        else:
            name, options = _hub_name(self.uri)
            table = self._library.load_dataset(
                name, name=options.get("config"), revision=options.get("revision")
            )
        if isinstance(table, self._library.DatasetDict):
            splits, split = [*table], self.options.split
            if split is None and len(splits) > 1:
                raise ValueError(choose_one(self.uri, splits))
            if split not in (None, *splits):
                raise ValueError(f"{self.uri} has no split {split!r}: {', '.join(splits)}")
            table = table[split or splits[0]]
        elif self.options.split not in (None, table.split):
            raise ValueError(
                f"{self.uri} has no split {self.options.split!r}, as it is not divided"
            )
        images = [
            name
            for name, feature in table.features.items()
            if isinstance(feature, self._library.Image)
        ]
        column = self.options.image_column or (images[0] if len(images) == 1 else None)
        if column is None or column not in table.column_names:
            raise ValueError(
                f"{self.uri} has {len(images)} columns of images; name one with image_column: "
                f"{', '.join(table.column_names)}"
            )
        return table, column

    def _load_saved(self) -> Any:
        """Load a saved data set. `load_from_disk` would read what its JSON names, wherever that is."""
        storage = LocalStorage(self.uri, "inside", self.allowed)
        try:
            if not os.path.exists(os.path.join(self.uri, _SPLITS)):
                return self._load_split(storage, "")
            splits = _read_json(storage, _SPLITS)["splits"]
            tables = {name: self._load_split(storage, f"{_plain(name)}/") for name in splits}
            return self._library.DatasetDict(tables)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{self.uri} is not a data set saved by datasets: {error!r}"
            ) from error

    def _load_split(self, storage: LocalStorage, folder: str) -> Any:
        pa = optional_module("pyarrow", _NEEDS, "huggingface")
        info, state = (_read_json(storage, folder + name) for name in SAVED_FILES)
        parts = []
        for part in state["_data_files"]:
            with storage.open(folder + _plain(part["filename"])) as file:
                # The file that was checked, whatever its name stands for by now.
                mapped = pa.memory_map(f"/dev/fd/{file.fileno()}")
                parts.append(_stored(pa, mapped, part["filename"]))
        about = self._library.DatasetInfo.from_dict(info)
        table = pa.concat_tables(parts)
        return self._library.Dataset(table, info=about, fingerprint=str(state["_fingerprint"]))


def _stored(pa: Any, mapped: Any, name: str) -> Any:
    """Return the table of an Arrow file as it is stored; a ValueError if it is damaged, or larger than the file.

    Arrow trusts the offsets in a file: without the check they may lead to any memory of this process.
    """
    batches, size = [], 0
    try:
        with pa.ipc.open_stream(mapped) as reader:
            for batch in reader:
                size += batch.get_total_buffer_size()
                if size > mapped.size() + _MOST_JSON:
                    raise ValueError(f"{name} is compressed; save the data set without compression")
                batch.validate(full=True)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except pa.ArrowException as error:
        raise ValueError(f"{name} is damaged: {error}") from error


def _read_json(storage: LocalStorage, path: str) -> Any:
    content = storage.read(path, 0, _MOST_JSON + 1)
    if len(content) > _MOST_JSON:
        raise ValueError(f"{path} has more than {_MOST_JSON >> 20} MiB")
    return json.loads(content)


def _plain(name: str) -> str:
    """Return the name of a file or folder beside; a ValueError if it leads elsewhere."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError(f"the data set names the file {name!r}, which is not beside it")
    return name


def _hub_name(uri: str) -> tuple[str, dict[str, str]]:
    """Return the name of a data set of the hub, and the options of its URI.

    Raises:
        ValueError: it is not OWNER/NAME, or is a local folder, which the library would read instead.
    """
    parts = urlsplit(uri)
    name = parts.netloc + parts.path.rstrip("/")
    if not _HUB_NAME.fullmatch(name) or os.path.exists(name):
        raise ValueError(f"{uri} names no data set of the hub; expected hf://OWNER/NAME")
    return name, {option: values[-1] for option, values in parse_qs(parts.query).items()}
