"""Where images and weights lie: plain paths and `file://` URIs, and the folders that may be read.

One reader for all who take such a text, the API, ingest and training: none can be led to another
place than the one that was checked.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

OUTSIDE = "lies, or leads, outside of the folders that may be read"
# Of the files of weights that timm reads.
WEIGHTS_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


def local_path(location: str) -> Path:
    """The absolute path that a plain path or a `file://` URI names; nothing else can be read.

    Raises:
        ValueError: it names no place of this machine; the end of a sentence about it.
    """
    path = location
    if "://" in location and not location.startswith("/"):
        try:
            parts = urlsplit(location)
        except ValueError:
            raise ValueError("is not a URI") from None
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError("is not a place on this machine")
        if parts.query or parts.fragment:
            raise ValueError("has a query or a fragment; write ? as %3F and # as %23")
        path = unquote(parts.path)
    if not path.startswith("/") or "\x00" in path:
        raise ValueError("is not an absolute path")
    # POSIX lets two slashes at the beginning mean something of their own; Linux does not.
    return Path("/" + path.lstrip("/"))


def is_allowed(
    path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]], *, follow: bool = True
) -> bool:
    """Whether a path lies in one of the folders that may be read; without any, all may.

    Args:
        follow: where links on the way lead counts, not where they are. Without, only the text
            counts, for paths of other machines.
    """
    if not roots:
        return True
    place = os.path.realpath if follow else os.path.normpath
    return any(PurePath(place(path)).is_relative_to(place(root)) for root in roots)
