"""A selection of the images of a data set."""

from dataclasses import dataclass

import numpy as np

from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex


@dataclass(frozen=True)
class ImageSet:
    """The images at some positions of an index, read as canvases."""

    canvases: Canvases
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def index(self) -> DatasetIndex:
        return self.canvases.index

    def every(self, stride: int) -> "ImageSet":
        """Select every n-th of these images."""
        return ImageSet(self.canvases, self.indices[::stride])

    def class_names(self) -> list[str] | None:
        """Class name of each image, or None without labels."""
        labels = self.index.labels
        if labels is None:
            return None
        return [self.index.class_names[label] for label in labels[self.indices].tolist()]

    def grouping(self) -> tuple[str, list[str]] | None:
        """Return the column of groups and the group of each image, "" for none; without it those of classes."""
        index = self.index
        if index.groups is not None:
            column = str(index.source.options.group_column)
            return column, [index.groups[position] for position in self.indices.tolist()]
        names = self.class_names()
        return None if names is None else ("class", names)

    def in_folder(self, name: str) -> np.ndarray:
        """Whether each image lies in a folder of this name inside its class folder, (N,) bool."""
        return np.array([f"/{name}/" in self.index.paths[index] for index in self.indices])


def spacing(count: int, limit: int) -> int:
    """Return the stride that selects at most `limit` of `count` items, evenly spaced."""
    return -(-count // limit)
