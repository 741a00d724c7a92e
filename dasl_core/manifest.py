"""The list of a checkpoint's files with their sha256, by which damage is found."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MANIFEST = "manifest.json"


def damage_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint that has a manifest; None: each file is as it was written.

    Raises:
        OSError: a file is there and cannot be read.
    """
    try:
        digests: dict[str, str] = json.loads((checkpoint / MANIFEST).read_bytes())["sha256"]
        for name, digest in digests.items():
            if Path(name).name != name:
                raise ValueError("it names what lies elsewhere")
            with open(checkpoint / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{checkpoint / name} is not as it was written"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{checkpoint / MANIFEST} is damaged"
    return None
