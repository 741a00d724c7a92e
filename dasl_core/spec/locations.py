"""Paths of images and weights: plain paths and `file://` URIs, and the folders that may be read.

The API, ingest and training share one parser, so that the path that is read is the checked one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

OUTSIDE = "resolves to a path outside the folders that may be read"
CONTAINS_PRIVATE = "contains a folder that may not be read"
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
    if path.startswith("~"):
        raise ValueError(
            "is not an absolute path: ~ is only replaced in a shell; write your home folder in full"
        )
    if not path.startswith("/") or "\x00" in path:
        raise ValueError("is not an absolute path")
    # POSIX leaves two leading slashes to the implementation; Linux treats them as one.
    return Path("/" + path.lstrip("/"))


@dataclass(frozen=True)
class ReadableFolders:
    """Readable folders with their contents, and excluded folders inside them.

    The deepest of these folders that contains a path decides.

    Attributes:
        roots: readable folders; empty for every folder.
        excluded: unreadable folders, which may include a root.
        resolve_links: False compares only the text of paths, for other machines.
        uris: readable prefixes of object stores, such as ``s3://bucket/folder``; None: all.
        excluded_uris: prefixes that are never readable.
    """

    roots: Sequence[str | os.PathLike[str]] = ()
    excluded: Sequence[str | os.PathLike[str]] = ()
    resolve_links: bool = True
    uris: Sequence[str] | None = None
    excluded_uris: Sequence[str] = ()

    def allow(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path may be read. It need not exist."""
        real = self._normalize(path)
        root, excluded = (
            max(
                (len(f.parts) for f in map(self._normalize, folders) if real.is_relative_to(f)),
                default=0,
            )
            for folders in (self.roots or ["/"], self.excluded)
        )
        return root > excluded

    def allow_tree(self, folder: str | os.PathLike[str]) -> bool:
        """Whether a folder may be read with its contents, except hidden files and folders."""
        real = self._normalize(folder)
        inside = (f for f in map(self._normalize, self.excluded) if f.is_relative_to(real))
        visible = (
            f for f in inside if not any(x.startswith(".") for x in f.relative_to(real).parts)
        )
        return self.allow(folder) and not any(visible)

    def allow_uri(self, uri: str) -> bool:
        """Whether everything below a remote URI, such as ``s3://bucket/folder``, may be read."""
        prefix = _normalized_uri(uri)
        excluded = [_normalized_uri(other) for other in self.excluded_uris]
        if any(prefix.startswith(other) or other.startswith(prefix) for other in excluded):
            return False
        return self.uris is None or any(
            prefix.startswith(_normalized_uri(other)) for other in self.uris
        )

    def expected(self, kind: str) -> str:
        """Return the expectation in an error message, for a `kind` of path such as "a folder"."""
        roots = [str(root) for root in self.roots if str(root) != "/"]
        return (
            f"{kind} in {' or '.join(roots)}"
            if roots
            else f"{kind} outside of the service's own folders"
        )

    def _normalize(self, path: str | os.PathLike[str]) -> PurePath:
        return PurePath((os.path.realpath if self.resolve_links else os.path.normpath)(path))


def _normalized_uri(uri: str) -> str:
    """Return a URI with one slash at its end, so that prefixes end at folder names."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme.lower()}://{os.path.normpath(rest)}/"


def only(folder: str) -> ReadableFolders:
    """Allow only one folder, or one prefix of an object store."""
    if "://" in folder:
        return ReadableFolders((os.devnull,), uris=(folder,))
    return ReadableFolders((folder,), uris=())


EVERY_FOLDER = ReadableFolders()
