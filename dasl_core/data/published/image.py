"""An image of a published data set, as its lists describe it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class PublishedImage:
    """One image and its place in the published split.

    Attributes:
        part: part of the split: "train", "test" or "val".
        class_name: name of the class, which becomes a folder.
        name: file name, unique within the part and class; of In-shop's test part with a folder,
            "query" or "gallery".
        content: the file, or pixels (height, width, 3) of 8 bits.
    """

    part: str
    class_name: str
    name: str
    content: Path | np.ndarray
