"""The index of an image folder: the result of ingest, one small file that training reads."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from dasl_core.atomic import write_atomically
from dasl_core.data.decode import ValueRange, decode_image
from dasl_core.spec import DatasetFacts

_FORMAT = 1

# Images of 16 bits whose values all lie below this leave half of the 256 levels or more unused. Sensors
# of 10 to 14 bits and reflectances up to 10,000 do; images with a highlight at full range do not.
_HALF_RANGE = 1 << 15
# Share of an image's values that may be defects, such as hot pixels.
_FEW_VALUES = 0.001


def inside(root: Path, path: str) -> Path:
    """Resolve a file below a folder, and check that no link leads out of the folder.

    Checked whenever a file is read: since ingest, a file may have become a link to a forbidden file.

    Args:
        root: resolved.

    Raises:
        ValueError: the file lies outside of the folder.
    """
    target = Path(os.path.realpath(root / path))
    if not target.is_relative_to(root):
        raise ValueError("it is a link that leads out of the data set's folder")
    return target


@dataclass(frozen=True)
class Skipped:
    """A file or folder that is not part of the data set."""

    path: str
    """Relative to the root, with forward slashes; bytes that are not UTF-8 are shown as ``\\xNN``."""
    reason: str
    """A sentence for people."""


@dataclass(frozen=True)
class DeepImages:
    """The images of more than 8 bits, and the part of 0 to 65535 that they use together."""

    num_images: int
    low: int
    high: int
    num_dark: int = 0
    """Images with nearly all values below 32768; older versions did not count them."""

    @classmethod
    def of(cls, ranges: Sequence[ValueRange]) -> DeepImages | None:
        """Combine the values of images; None if there are none."""
        if not ranges:
            return None
        dark = sum(each.upper < _FEW_VALUES for each in ranges)
        low, high = min(each.low for each in ranges), max(each.high for each in ranges)
        return cls(len(ranges), low, high, dark)

    def warning(self) -> str | None:
        """Say what is lost when the range is scaled to 8 bits; None if most images use most of it."""
        remedy = (
            "Stretch the values of all images alike to 0 to 65535, or convert the images to 8 bits, and "
            "register the folder again"
        )
        if self.high >= _HALF_RANGE:
            # A few values or images with the whole range do not help the others.
            if 2 * self.num_dark <= self.num_images:
                return None
            return (
                f"{self.num_dark} of {self.num_images} images of 16 bits have nearly all values below "
                f"{_HALF_RANGE}; scaled from 0 to 65535 to 8 bits, at most half of 256 levels are left of "
                f"them. {remedy}"
            )
        left = round(self.high / 257) - round(self.low / 257) + 1
        images = "1 image has" if self.num_images == 1 else f"{self.num_images} images have"
        return (
            f"{images} 16 bits and only values of {self.low} to {self.high}; scaled from 0 to 65535 to 8 "
            f"bits, at most {left} of 256 levels are left. {remedy}"
        )


@dataclass(frozen=True)
class DatasetIndex:
    """The usable images of a folder, in a fixed order."""

    on_disk: ClassVar[bool] = True
    """Whether the images are files, which can be missing, and whose pixels are cached."""

    root: Path
    """The folder, with links resolved."""
    paths: list[str]
    """Relative to `root`, with forward slashes, sorted."""
    labels: list[int] | None
    """One index into `class_names` per path; None when the folder has no labels."""
    class_names: list[str]
    """Sorted; empty when the folder has no labels."""
    sizes: np.ndarray
    """(N, 2) int32: width and height in pixels, upright."""
    skipped: list[Skipped]
    num_ignored: int = 0
    """Files without the extension of an image; hidden files are not counted."""
    deep_images: DeepImages | None = None
    """None when all images have 8 bits, or when an older version wrote the index."""

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        """The path of an image.

        Raises:
            ValueError: a link leads out of the folder.
        """
        return inside(self.root, self.paths[index])

    def decode(self, index: int, channels: int) -> np.ndarray:
        """Return the uint8 pixels (height, width, channels) of an image.

        Raises:
            ValueError: it cannot be read; the message is the reason.
        """
        return decode_image(self.path(index), channels)

    def facts(self) -> DatasetFacts:
        """The facts from which the "auto" values of a job are resolved."""
        return DatasetFacts(
            num_images=len(self.paths),
            num_classes=len(self.class_names) if self.labels is not None else None,
            median_size=int(np.median(self.sizes.min(axis=1))),
        )

    def report(self, limit: int = 1000) -> dict[str, Any]:
        """A report for people, JSON-ready, with at most `limit` skipped files and classes."""
        return {
            "num_images": len(self.paths),
            "num_skipped": len(self.skipped),
            "num_ignored": self.num_ignored,
            "class_names": self.class_names[:limit],
            "skipped": [
                {"path": skipped.path, "reason": skipped.reason} for skipped in self.skipped[:limit]
            ],
            "deep_images": None if self.deep_images is None else asdict(self.deep_images),
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """Sentences on what training loses of the usable images."""
        lost = None if self.deep_images is None else self.deep_images.warning()
        return [] if lost is None else [lost]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write gzipped JSON, atomically; the same index gives the same bytes."""
        content = {
            "format": _FORMAT,
            "root": str(self.root),
            "paths": self.paths,
            "labels": self.labels,
            "class_names": self.class_names,
            "sizes": self.sizes.tolist(),
            "skipped": [[skipped.path, skipped.reason] for skipped in self.skipped],
            "num_ignored": self.num_ignored,
            "deep_images": None if self.deep_images is None else asdict(self.deep_images),
        }
        data = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
        write_atomically(Path(path), data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DatasetIndex:
        """Read a file that `save` wrote.

        Raises:
            ValueError: the file is not an index, is damaged, or names an image outside its root.
            OSError: the file does not exist, or cannot be read.
        """
        data = Path(path).read_bytes()
        try:
            content = json.loads(gzip.decompress(data))
            if not isinstance(content, dict):
                raise ValueError(f"it must contain a mapping, not {type(content).__name__}")
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}, expected {_FORMAT}")
            deep = content.get("deep_images")  # older versions wrote none
            index = cls(
                root=Path(content["root"]),
                paths=content["paths"],
                labels=content["labels"],
                class_names=content["class_names"],
                sizes=np.array(content["sizes"], dtype=np.int32).reshape(-1, 2),
                skipped=[Skipped(*entry) for entry in content["skipped"]],
                num_ignored=content["num_ignored"],
                deep_images=None if deep is None else DeepImages(**deep),
            )
            index._check_types()
        except Exception as error:  # damaged files raise arbitrary exception types
            detail = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is not a data set index: {detail}") from error
        index._check_paths(path)
        return index

    def _check_types(self) -> None:
        for name, texts in (
            ("paths", self.paths),
            ("class_names", self.class_names),
            ("skipped", [text for entry in self.skipped for text in (entry.path, entry.reason)]),
        ):
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"its {name} must be strings")
        lengths = {len(self.paths), len(self.sizes)}
        if self.labels is not None:
            lengths.add(len(self.labels))
            classes = range(len(self.class_names))
            # Compared by type: a bool equals a number, but is not one.
            if (
                not isinstance(self.labels, list)
                or {*map(type, self.labels)} - {int}
                or not {*self.labels} <= {*classes}
            ):
                raise ValueError(f"its labels must be numbers from 0 to {len(classes) - 1}")
        if len(lengths) != 1:
            raise ValueError("its lists differ in length")
        if self.sizes.size and self.sizes.min() < 1:
            raise ValueError("its sizes must be at least 1")
        if type(self.num_ignored) is not int or self.num_ignored < 0:
            raise ValueError("its num_ignored must be a number of at least 0")
        if self.deep_images is not None and {*map(type, astuple(self.deep_images))} != {int}:
            raise ValueError("its deep_images must be numbers")

    def _check_paths(self, path: object) -> None:
        for name in self.paths:
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts:
                raise ValueError(f"{path} names an image outside its folder: {name}")
