"""What is compared: each contender makes two SimCLR views of every image of an epoch."""

import importlib.util
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks import own_run
from benchmarks.data import transforms
from benchmarks.data.sources import Bucket, Source
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.train.trainer import Trainer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Images of one size in one place, and the size of their views.

    Attributes:
        name: in the table and in the results.
        images: folder of JPEGs.
        source: the same images, in a folder, a tar or on S3.
        scratch: an empty folder for the contenders of this case.
        view_size: pixels a side.
    """

    name: str
    images: Path
    source: Source
    scratch: Path
    view_size: int
    batch_size: int
    workers: int


class Contender(Protocol):
    """A way to make views."""

    name: str

    def epoch(self) -> int:
        """Make the views of every image; return the number of images."""

    def close(self) -> None:
        """Stop its threads and processes."""


class OwnIngest:
    """Our ingest: what happens once, before the first epoch."""

    name = "ours, ingest"

    def __init__(self, case: Case) -> None:
        self.case = case

    def epoch(self) -> int:
        """Make the index."""
        return len(own_index(self.case))

    def close(self) -> None:
        """Nothing runs."""


class OwnFirstEpoch:
    """Our first epoch on a data set: every image is decoded, into a new cache."""

    name = "ours, first epoch"

    def __init__(self, case: Case) -> None:
        self.case, self.index = case, own_index(case)
        self.caches = map(str, itertools.count())

    def epoch(self) -> int:
        """Build the trainer of a run and make all views."""
        folder = self.case.scratch / f"first-{next(self.caches)}"
        trainer = own_trainer(self.case, self.index, folder)
        try:
            return own_epoch(trainer, 0)
        finally:
            trainer.close()

    def close(self) -> None:
        """Each epoch ends what it started."""


class OwnCachedEpoch:
    """Every later epoch of ours, and the first one of a later run."""

    name = "ours, cached epoch"

    def __init__(self, case: Case) -> None:
        self.trainer = own_trainer(case, own_index(case), case.scratch / "cached")
        self.epochs = itertools.count()

    def epoch(self) -> int:
        """Make all views from the cache."""
        return own_epoch(self.trainer, next(self.epochs))

    def close(self) -> None:
        """Stop the decoding threads."""
        self.trainer.close()


def own_index(case: Case) -> DatasetIndex:
    """Return our index of the images of a case."""
    if isinstance(case.source, Bucket):
        os.environ.update(case.source.environment)
    return ingest_folder(case.source.location, workers=case.workers)


def own_trainer(case: Case, index: DatasetIndex, folder: Path) -> Trainer:
    """Return a trainer with a tiny network, which is not used."""
    settings: dict[str, Any] = {
        "backbone": {"name": "test_resnet", "image_size": case.view_size},
        "method": {"name": "simclr"},
        "augment": own_run.SIMCLR_VIEWS,
        "train": {"batch_size": case.batch_size, "epochs": 100},
    }
    folder.mkdir(parents=True)
    return own_run.build(settings, index, folder, device=CPU, threads=case.workers)


def own_epoch(trainer: Trainer, epoch: int) -> int:
    """Make the views of an epoch; return the number of images."""
    return sum(len(views[0]) for _, views in own_run.views_of_epoch(trainer, epoch))


class Loaded:
    """A DataLoader whose workers decode and transform."""

    def __init__(self, name: str, batches: DataLoader[Any]) -> None:
        self.name = name
        self.batches: DataLoader[Any] | None = batches

    def epoch(self) -> int:
        """Load all batches."""
        assert self.batches is not None
        return sum(len(batch[0]) for batch in self.batches)

    def close(self) -> None:
        """Stop the workers, which end with the DataLoader."""
        self.batches = None


class Kornia(Loaded):
    """Workers decode and resize; kornia then transforms a batch on all cores."""

    def __init__(self, case: Case) -> None:
        images = transforms.Images(
            case.source, transforms.decode_tensor, transforms.Resized(case.view_size)
        )
        super().__init__("kornia", transforms.loader(images, case.batch_size, case.workers))
        self.views = transforms.kornia_views(case.view_size)

    def epoch(self) -> int:
        """Transform all batches."""
        assert self.batches is not None
        images = 0
        for batch in self.batches:
            pixels = batch.float() / 255
            views: list[Tensor] = [self.views(pixels) for _ in range(2)]
            images += len(views[0])
        return images


def torchvision_pillow(case: Case) -> Contender:
    """Return torchvision's transforms of Pillow's images, as `ImageFolder` loads them."""
    return _loaded("torchvision v2, Pillow", case, transforms.decode_pillow, _torchvision(case))


def torchvision_tensor(case: Case) -> Contender:
    """Return torchvision's transforms of tensors, as its documentation advises."""
    return _loaded("torchvision v2, tensors", case, transforms.decode_tensor, _torchvision(case))


def lightly(case: Case) -> Contender:
    """Return lightly's transforms."""
    views = transforms.lightly_views(case.view_size)
    return _loaded("lightly", case, transforms.decode_pillow, views)


def litdata(case: Case) -> Contender:
    """Return litData's streaming of optimized chunks, with lightly's transforms."""
    from benchmarks.data.streaming import streamed

    views = transforms.lightly_views(case.view_size)
    batches = streamed(case.source, case.scratch / "chunks", views, case.batch_size, case.workers)
    return Loaded("litdata, lightly", batches)


def _torchvision(case: Case) -> transforms.Transform:
    return transforms.torchvision_views(case.view_size)


def _loaded(
    name: str, case: Case, decode: transforms.Decode, views: transforms.Transform
) -> Contender:
    images = transforms.Images(case.source, decode, views)
    return Loaded(name, transforms.loader(images, case.batch_size, case.workers))


OWN: dict[str, Callable[[Case], Contender]] = {
    "ours, ingest": OwnIngest,
    "ours, first epoch": OwnFirstEpoch,
    "ours, cached epoch": OwnCachedEpoch,
}
OTHERS: dict[str, Callable[[Case], Contender]] = {
    "lightly": lightly,
    "torchvision v2, Pillow": torchvision_pillow,
    "torchvision v2, tensors": torchvision_tensor,
    "kornia": Kornia,
    "litdata, lightly": litdata,
}


def contenders(case: Case) -> dict[str, Callable[[Case], Contender]]:
    """Return the contenders that can run a case."""
    installed = {
        name: make
        for name, make in OTHERS.items()
        if importlib.util.find_spec("litdata") or make is not litdata
    }
    return OWN | installed
