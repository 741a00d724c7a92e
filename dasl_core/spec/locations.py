"""Paths of images and weights: plain paths and `file://` URIs, and the folders that may be read.

The API, ingest and training share one parser, so that the path that is read is the one that was checked.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

OUTSIDE = "resolves to a path outside the folders that may be read"
# File name extensions of the weights that timm reads.
WEIGHTS_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
# Files of a checkpoint: the weights of its backbone, and their description.
CHECKPOINT_WEIGHTS, CHECKPOINT_MODEL = "backbone.safetensors", "model.json"


def local_path(location: str) -> Path:
    """Return the absolute path of a plain path or a `file://` URI.

    Raises:
        ValueError: it is not a path on this machine. The message continues a sentence about it.
    """
    path = location
    if "://" in location and not location.startswith("/"):
        try:
            parts = urlsplit(location)
        except ValueError:
            raise ValueError("is not a URI") from None
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError("is not a path on this machine")
        if parts.query or parts.fragment:
            raise ValueError("has a query or a fragment; write ? as %3F and # as %23")
        path = unquote(parts.path)
    if not path.startswith("/") or "\x00" in path:
        raise ValueError("is not an absolute path")
    # POSIX leaves two leading slashes to the implementation; Linux treats them as one.
    return Path("/" + path.lstrip("/"))


def is_allowed(
    path: str | os.PathLike[str],
    roots: Sequence[str | os.PathLike[str]],
    *,
    resolve_links: bool = True,
) -> bool:
    """Whether a path is inside one of `roots`, the folders that may be read; without any, every path is.

    Args:
        resolve_links: False compares only the text, for paths on other machines.
    """
    if not roots:
        return True
    normalize = os.path.realpath if resolve_links else os.path.normpath
    return any(PurePath(normalize(path)).is_relative_to(normalize(root)) for root in roots)
