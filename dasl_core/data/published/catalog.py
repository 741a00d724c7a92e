"""The published data sets and their sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dasl_core.data.published.cifar import read_cifar10, read_cifar100
from dasl_core.data.published.imagenet100 import read_imagenet100
from dasl_core.data.published.lists import PublishedImage
from dasl_core.data.published.retrieval import read_cars196, read_cub200, read_inshop, read_sop


@dataclass(frozen=True)
class PublishedDataset:
    """A data set that `dasl prepare` lays out.

    Attributes:
        read: yields its images, given the folder or archive of the authors.
        sizes: published number of images and of classes of each part.
    """

    read: Callable[[Path], Iterator[PublishedImage]]
    sizes: Mapping[str, tuple[int, int]]


PUBLISHED = {
    "cub200": PublishedDataset(read_cub200, {"train": (5_864, 100), "test": (5_924, 100)}),
    "cars196": PublishedDataset(read_cars196, {"train": (8_054, 98), "test": (8_131, 98)}),
    "sop": PublishedDataset(read_sop, {"train": (59_551, 11_318), "test": (60_502, 11_316)}),
    "inshop": PublishedDataset(read_inshop, {"train": (25_882, 3_997), "test": (26_830, 3_985)}),
    "cifar10": PublishedDataset(read_cifar10, {"train": (50_000, 10), "test": (10_000, 10)}),
    "cifar100": PublishedDataset(read_cifar100, {"train": (50_000, 100), "test": (10_000, 100)}),
    "imagenet100": PublishedDataset(
        read_imagenet100, {"train": (126_689, 100), "val": (5_000, 100)}
    ),
}
