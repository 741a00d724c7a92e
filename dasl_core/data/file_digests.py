"""SHA-256 of the files of a data set's images: evidence of what a run was trained on."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from dasl_core.data.bounded_map import map_waiting
from dasl_core.data.index import DatasetIndex
from dasl_core.machine import usable_cores

SIZE = 32
_NONE = bytes(SIZE)


class FileDigests:
    """The SHA-256 of each image's file, stored when its canvas is written; zeros for an image that was not read.

    The processes of a machine that write the same canvases share the file. With write instead of a map, since a full
    disk would end the process that writes to a map; what is not written is computed later.
    """

    def __init__(self, index: DatasetIndex, file: Path | None) -> None:
        """Open the file, or create it; None: a temporary file."""
        self._index = index
        self._known = bytearray(len(index))
        if file is not None:
            with suppress(OSError):  # such as without permission
                self._file = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
                return
        with tempfile.TemporaryFile() as unnamed:
            self._file = os.dup(unnamed.fileno())

    def has(self, position: int) -> bool:
        """Whether this process has stored the digest of an image."""
        return bool(self._known[position])

    def put(self, position: int, digest: bytes) -> None:
        """Store the digest of an image."""
        with suppress(OSError):
            os.pwrite(self._file, digest, position * SIZE)
            self._known[position] = True

    def complete(self, on_read: Callable[[], object] = lambda: None) -> list[bytes]:
        """Return the digests of all images; read the files of those that are missing, and call `on_read` after each."""
        stored = os.pread(self._file, len(self._index) * SIZE, 0).ljust(
            len(self._index) * SIZE, b"\0"
        )
        digests = [stored[at : at + SIZE] for at in range(0, len(stored), SIZE)]
        missing = [at for at, digest in enumerate(digests) if digest == _NONE]
        with closing(map_waiting(usable_cores(), self._read, missing)) as read:
            for at, digest in zip(missing, read, strict=True):
                on_read()
                digests[at] = digest
        return digests

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, position: int) -> bytes:
        try:
            digest = self._index.file_digest(position)
        except ValueError:  # known and reported as unreadable
            return _NONE
        self.put(position, digest)
        return digest


def merkle_root(digests: list[bytes]) -> str:
    """Compute the root of a Merkle tree, in hexadecimal, with RFC 6962's prefixes of leaves and nodes.

    The last node of an odd level moves up.
    """
    level = [hashlib.sha256(b"\0" + digest).digest() for digest in digests]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        odd = level[len(level) & ~1 :]
        level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + odd
    return level[0].hex()


def digest_labels(index: DatasetIndex) -> str | None:
    """Compute the SHA-256 of the class of each image, by name; None without labels."""
    if index.labels is None:
        return None
    content = hashlib.sha256("\0".join(index.class_names).encode())
    content.update(np.ascontiguousarray(index.labels, "<i4").tobytes())
    return content.hexdigest()
