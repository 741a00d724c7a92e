"""Data sets of the Hugging Face hub, and those saved by `datasets`."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from dasl_core.data.sources.base import Entry, Listing, OnListed

# A data set that `Dataset.save_to_disk` wrote has these files.
SAVED_FILES = ("dataset_info.json", "state.json")


class HuggingFaceSource:
    """The images of one split of a data set that the library `datasets` loads.

    Args:
        uri: ``hf://owner/name``, with ``?config=NAME&revision=NAME`` if needed; or the folder of a saved data set.
        split: None takes the only one.

    Raises:
        ValueError: `datasets` is not installed.
    """

    def __init__(
        self,
        uri: str,
        split: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        try:
            import datasets
        except ImportError as error:
            raise ValueError(
                "Hugging Face data sets need a package that is not installed; install dasl[huggingface]"
            ) from error
        self._library: Any = datasets
        self.uri, self.split = uri, split
        self.image_column, self.label_column = image_column, label_column
        self.files: list[str] = []
        self._loaded: Any = None

    def list_entries(self, on_listed: OnListed) -> Listing:
        table, _ = self._table()
        label = self.label_column or ("label" if "label" in table.column_names else None)
        if label is not None and label not in table.column_names:
            raise ValueError(f"{self.uri} has no column {label!r}: {table.column_names}")
        names = getattr(table.features[label], "names", None) if label is not None else None
        labels = [None] * len(table) if label is None else table[label]
        digits = len(str(len(table)))
        stamp = int.from_bytes(table._fingerprint.encode()[:7], "little")
        entries = []
        for position, value in enumerate(labels):
            text = None if value is None else str(value)
            if names is not None and isinstance(value, int) and 0 <= value < len(names):
                text = str(names[value])
            entries.append(Entry(f"{position:0{digits}}", -1, stamp, 0, position, text, None))
            on_listed(len(entries))
        return Listing(entries, [])

    def open(self, entry: Entry) -> BinaryIO:
        table, column = self._table()
        value = table[entry.offset][column]
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict) and value.get("path"):
            return open(value["path"], "rb")
        if not isinstance(content, bytes):
            raise ValueError("the row has no image")
        return io.BytesIO(content)

    def _table(self) -> tuple[Any, str]:
        """Return the table, whose images are not decoded, and the column of the images."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded  # type: ignore[no-any-return]

    def _load(self) -> tuple[Any, str]:
        if os.path.isdir(self.uri):
            table = self._library.load_from_disk(self.uri)
        else:
            parts = urlsplit(self.uri)
            options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            table = self._library.load_dataset(
                parts.netloc + parts.path.rstrip("/"),
                name=options.get("config"),
                revision=options.get("revision"),
            )
        if isinstance(table, self._library.DatasetDict):
            splits = [*table]
            if self.split is None and len(splits) > 1:
                raise ValueError(
                    f"{self.uri} is divided into splits; choose one with split: {', '.join(splits)}"
                )
            if (split := self.split or splits[0]) not in splits:
                raise ValueError(f"{self.uri} has no split {split!r}: {', '.join(splits)}")
            table = table[split]
        images = [
            name
            for name, feature in table.features.items()
            if isinstance(feature, self._library.Image)
        ]
        column = self.image_column or (images[0] if len(images) == 1 else None)
        if column is None or column not in table.column_names:
            raise ValueError(
                f"{self.uri} has {len(images)} columns of images; name one with image_column: "
                f"{', '.join(table.column_names)}"
            )
        return table.cast_column(column, self._library.Image(decode=False)), column
