"""Differences between two versions of a data set."""

from __future__ import annotations

import numpy as np

from dasl_core.data.headers import identify
from dasl_core.data.index import DatasetIndex


def count_changes(before: DatasetIndex, after: DatasetIndex) -> dict[str, int]:
    """Count the images that were added, removed, changed and unchanged."""
    names = {*before.paths}
    common = sum(path in names for path in after.paths)
    identities = {digest.tobytes() for digest in _identities(before)}
    unchanged = sum(digest.tobytes() in identities for digest in _identities(after))
    return {
        "added": len(after) - common,
        "removed": len(before) - common,
        "changed": common - unchanged,
        "unchanged": unchanged,
    }


def _identities(index: DatasetIndex) -> np.ndarray:
    entries = [index.entry(position) for position in range(len(index))]
    return identify(entries, index.source.files)
