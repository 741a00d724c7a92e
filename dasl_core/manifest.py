"""Manifest of a checkpoint: sha256 and size of each file, to detect damage.

It is written last, so a folder with a manifest holds a complete checkpoint.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from dasl_core.vocabulary import FILE_NAME

MANIFEST = "manifest.json"


def encode(files: Mapping[str, tuple[int, str]], about: Mapping[str, Any]) -> bytes:
    """Return the content of a manifest.

    Args:
        files: size in bytes and sha256 of each file, by name.
        about: further facts about the checkpoint, JSON-ready.
    """
    sizes = {name: size for name, (size, _) in files.items()}
    digests = {name: digest for name, (_, digest) in files.items()}
    manifest = {**about, "size": sizes, "sha256": digests}
    return (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()


def read_digests(checkpoint: Path) -> dict[str, str]:
    """Read the sha256 of each file from a checkpoint's manifest.

    Raises:
        ValueError: the manifest is damaged.
        OSError: it is missing, or cannot be read.
    """
    with _open(checkpoint / MANIFEST) as file:
        content = file.read()
    try:
        listed = json.loads(content)["sha256"].items()
        if not all(re.fullmatch(FILE_NAME, name) for name, _ in listed):
            raise ValueError("a name leads elsewhere")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{checkpoint / MANIFEST} is damaged") from error
    return dict(listed)


def find_damage(checkpoint: Path) -> str | None:
    """Verify a checkpoint; return the problem, or None if it is intact. An OSError if a file cannot be read."""
    try:
        for name, digest in read_digests(checkpoint).items():
            with _open(checkpoint / name) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{checkpoint / name} is not as it was written"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except ValueError as error:
        return str(error)
    return None


def _open(path: Path) -> BufferedReader:
    # O_NONBLOCK: opening a FIFO would block.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "Not a regular file", str(path))  # reading a device may never end
