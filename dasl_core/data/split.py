"""The split of a data set into training and held-out images."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dasl_core.data.index import DatasetIndex
from dasl_core.data.strings import Strings
from dasl_core.spec import Holdout


@dataclass(frozen=True)
class Split:
    """Positions in an index, each sorted ascending, int64."""

    train: np.ndarray
    held_out: np.ndarray


def split(index: DatasetIndex, holdout: Holdout | None) -> Split:
    """Hold out a share of the images, or of the classes, chosen by a hash of their names; None holds out none.

    The choice does not depend on the seed or on the order of files, so that runs with different
    seeds are evaluated on the same images, and a larger share contains a smaller one.

    Raises:
        ValueError: classes are held out of a data set that has fewer than two.
    """
    held_out = np.zeros(len(index), dtype=bool)
    if holdout is None:
        pass
    elif holdout.by == "image":
        selected = _smallest_hashes(index.paths, holdout.fraction)
        held_out[selected] = True
    else:
        if index.labels is None or len(index.class_names) < 2:
            raise ValueError("evaluate.holdout.by is 'class', but the data set has no classes")
        classes = _smallest_hashes(index.class_names, holdout.fraction)
        held_out = np.isin(index.labels, classes)
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out))


def _smallest_hashes(names: Sequence[str], fraction: float) -> np.ndarray:
    """Return the positions of a share of sorted names, in the order of their hashes."""
    packed = Strings.pack(names)
    digests = bytearray()
    for chunk in packed.encoded_in_chunks(np.arange(len(packed))):
        digests += b"".join([hashlib.blake2b(name, digest_size=8).digest() for name in chunk])
    # Names are sorted, so a stable sort breaks ties by name.
    order = np.frombuffer(digests, ">u8").astype(np.uint64).argsort(kind="stable")
    return order[: round(fraction * len(names))]
