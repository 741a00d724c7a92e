"""Location and selection of a data set's images."""

import os
import posixpath
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from dasl_core.spec.base import SpecModel, problem
from dasl_core.spec.problems import FieldProblem, Problems

# Stores opened by fsspec. Not http or ftp, with which users could make the server fetch any address.
REMOTE_SCHEMES = ("s3", "gs", "az", "abfs", "hf")

# Kinds of files that contain or list many images: names in `dasl_core.data.sources.SOURCES`.
SOURCE_KINDS = {
    ".tar": "tar",
    ".zip": "zip",
    ".parquet": "parquet",
    **dict.fromkeys((".csv", ".tsv"), "list"),
    **dict.fromkeys((".txt", ".lst"), "paths"),
    ".npy": "npy",
}
SOURCE_ENDINGS = tuple(SOURCE_KINDS)

COMPRESSED_ENDINGS = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".7z", ".rar")
COMPRESSED = (
    "is compressed as a whole, so a single image of it cannot be read. Decompress it, for example with gunzip, and use "
    "the .tar or the folder"
)

# Bucket names of all stores; "container@account" is Azure's form.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")

Links = Literal["inside", "follow"]
LONGEST_NAME = 255
"""Characters of a class's name: those of a folder's. Longer ones are texts about images."""
_MOST_TEXT = 1 << 19
"""Characters of all classes together, which each view of the data set has: twice those of ImageNet-21k."""
Column = Annotated[str, Field(min_length=1, max_length=200)]
ClassName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class SourceOptions(SpecModel):
    """Which images of a source are used, and where their labels are."""

    split: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Use the images of one split only: that of a folder, of a column, or of a Parquet file's name, such as
    "train". null: the source must not be divided into splits."""
    labels: Literal["auto", "none"] = "auto"
    """ "auto": the labels of the source (a column, or `.cls` files of a tar), else the names of the
    first-level folders. "none": no labels."""
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1, max_length=100_000)] | None = None
    """Names of the classes whose images are used. null: all."""
    links: Links = "inside"
    """Links of a folder. "inside": links to files inside the folder are read, others are skipped. "follow":
    links to files and folders elsewhere are read, too, where the workers may read."""
    image_column: Column | None = None
    """Column of the images of a table, or of their paths in a list. null: found by its name or type."""
    label_column: Column | None = None
    """Column of the labels of a table or list. null: "label", if there is one."""
    group_column: Column | None = None
    """Column of a table or list with the group of each image, such as its patient, for
    `evaluate.holdout.group`."""

    @field_validator("classes")
    @classmethod
    def _check_text(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes and sum(map(len, classes)) > _MOST_TEXT:
            raise problem(
                "has too much text",
                f"{sum(map(len, classes))} characters",
                f"at most {_MOST_TEXT} in all",
            )
        return classes


_COLUMNS = ("image_column", "label_column", "group_column")
# What each kind of source is called, and the options that it reads. `labels` is of effect for all.
READ_OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "folder": ("a folder of images", ("split", "classes", "links")),
    "tar": ("tar archives", ("split", "classes", "links")),
    "zip": ("zip archives", ("split", "classes", "links")),
    "npy": ("an array", ()),
    "paths": ("a list of paths", ("split",)),
    "list": ("a list", ("split", "classes", *_COLUMNS)),
    "parquet": ("Parquet files", ("split", "classes", "links", *_COLUMNS)),
    "huggingface": ("a Hugging Face data set", ("split", "classes", *_COLUMNS)),
}
_INSTEAD = {"group_column": ", or use evaluate.holdout.group with folder or pattern in the spec"}


def unread_options(kind: str | None, uri: str, options: SourceOptions) -> list[FieldProblem]:
    """Describe the options without an effect: by the kind of source (`READ_OPTIONS`), its place, or other options.

    Args:
        kind: None if it is not known yet.
    """
    useless: dict[str, str] = {}
    if kind is not None:
        what, read = READ_OPTIONS[kind]
        useless = dict.fromkeys(SourceOptions.model_fields.keys() - {"labels", *read}, what)
    if options.labels == "none":
        useless |= dict.fromkeys(("classes", "label_column"), "labels: none")
    if remote_scheme(uri) is not None:
        useless |= {"links": "images in an object store"}
    problems = Problems()
    for field, value in options.model_dump(exclude_defaults=True).items():
        if field in useless:
            remedy = f"remove it{_INSTEAD.get(field, '')}"
            problems.add(field, f"has no effect with {useless[field]}; {remedy}", str(value)[:80])
    return problems


def is_pattern(name: str) -> bool:
    """Whether the last part of a location may match several files."""
    return any(character in name for character in "*?{")


def remote_scheme(uri: str) -> str | None:
    """Return the scheme of a remote URI; None for a path or a `file://` URI.

    Raises:
        ValueError: the scheme is not one of `REMOTE_SCHEMES`, or the URI names no bucket or owner. The message
            continues a sentence about the URI.
    """
    if "://" not in uri or uri.startswith("/"):
        return None
    parts = urlsplit(uri)
    scheme = parts.scheme.lower()
    if scheme == "file":
        return None
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(f"{each}://" for each in REMOTE_SCHEMES)
        raise ValueError(f"has the scheme {scheme}://; expected a path, file://, {known}")
    # fsspec reads it as a chain, whose other parts no folder list would be asked about.
    if "::" in uri:
        raise ValueError("contains ::, which joins several locations; expected one")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(f"names no bucket or owner; expected one after {scheme}://")
    return scheme


def is_missing(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a nonexistent local path, not a pattern."""
    text = os.fspath(location)
    if "://" in text or is_pattern(posixpath.basename(text)):
        return False
    return not os.path.exists(text)
