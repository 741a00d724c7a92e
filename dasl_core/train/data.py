"""The images of a run: which are trained on, which are held out, and in what order they come."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Canvases, EpochLoader
from dasl_core.data.split import split
from dasl_core.data.unreadable import notice, refusal, too_many
from dasl_core.distributed import gather_objects
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.evaluation import ImageSet
from dasl_core.train.reporting import Reporter


@dataclass
class TrainingData:
    """What a run reads.

    Attributes:
        sets: every data set that is read, by its name in the spec.
        labels: (len(index),) int64, classes of the training images from 0, -1 for all others; None
            without labels.
        num_classes: of the training images.
        unreadable: how many images of each data set can no longer be read.
    """

    index: DatasetIndex
    train: ImageSet
    held_out: ImageSet
    loader: EpochLoader
    labels: Tensor | None
    num_classes: int | None
    sets: dict[str, Canvases]
    unreadable: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        spec: ResolvedJobSpec,
        index: DatasetIndex,
        evaluate_on: DatasetIndex | None,
        cache: Path,
        threads: int,
    ) -> "TrainingData":
        """Of a resolved spec; images are decoded into `cache` where that was not done before.

        Raises:
            ValueError: fewer images are left for training than a batch has, or fewer than two classes
                for what learns from classes.
        """
        batch_size, per_class = spec.train.batch_size, spec.train.samples_per_class
        size, channels = spec.backbone.image_size, spec.backbone.in_channels

        def canvases(of: DatasetIndex) -> Canvases:
            return Canvases(of, size, channels, cache=cache, threads=threads)

        own = canvases(index)
        sets = {spec.dataset: own}
        if evaluate_on is None:
            parts = split(index, spec.evaluate.holdout)
            train, held_out = ImageSet(own, parts.train), ImageSet(own, parts.held_out)
        else:
            assert spec.evaluate.dataset is not None, "it names what to evaluate on"
            other = sets[spec.evaluate.dataset] = canvases(evaluate_on)
            train = ImageSet(own, np.arange(len(index)))
            held_out = ImageSet(other, np.arange(len(evaluate_on)))

        labels, num_classes, of_train = None, None, None
        if index.labels is not None:
            samples = torch.from_numpy(train.samples)
            classes, numbers = np.unique(
                np.asarray(index.labels)[train.samples], return_inverse=True
            )
            num_classes, of_train = len(classes), torch.from_numpy(numbers)
            labels = torch.full((len(index),), -1)
            labels[samples] = of_train
        check_classes(spec, num_classes)
        loader = EpochLoader(
            own,
            train.samples,
            batch_size,
            spec.train.seed,
            labels=of_train,
            samples_per_class=per_class,
        )
        return cls(index, train, held_out, loader, labels, num_classes, sets)

    def check_images(self, reporter: Reporter | None, control: dist.ProcessGroup | None) -> None:
        """Tell of images that can no longer be read; end the run when they are too many.

        Each rank knows of its own, so that all must hear of all to decide alike.

        Raises:
            ValueError: too many images of a data set cannot be read.
        """
        for name, canvases in self.sets.items():
            unreadable: dict[int, str] = {}
            for found in gather_objects(dict(canvases.unreadable), control):
                unreadable |= found
            if too_many(len(unreadable), len(canvases.index)):
                raise ValueError(refusal(name, canvases.index, unreadable))
            if unreadable and name not in self.unreadable and reporter is not None:
                message, data = notice(name, canvases.index, unreadable)
                reporter.event("images_unreadable", message, data)
            if unreadable:
                self.unreadable[name] = len(unreadable)

    def facts(self) -> dict[str, int | None]:
        """What a model card says of the data."""
        return {
            "images": len(self.index),
            "classes": len(self.index.class_names) if self.index.labels else None,
            "train_images": len(self.train.samples),
            "held_out_images": len(self.held_out.samples),
        }

    def digest(self) -> str:
        """Of the names and sizes of the images to train on, in order."""
        samples = self.train.samples
        names = "\0".join(self.index.paths[sample] for sample in samples.tolist())
        content = hashlib.blake2b(names.encode(), digest_size=16)
        content.update(self.index.sizes[samples].astype("<i4").tobytes())
        return content.hexdigest()

    def close(self) -> None:
        """End the threads that decode."""
        for canvases in self.sets.values():
            canvases.close()


def check_classes(spec: ResolvedJobSpec, classes: int | None) -> None:
    """Whether enough classes are left for what learns from them; which are held out is known now.

    Raises:
        ValueError: one class or none is left; the message names the field.
    """
    by_class = spec.dar is not None and spec.dar.labels == "class" and spec.dar.active
    if (classes or 0) >= 2 or not (spec.method.supervised or by_class):
        return
    field = "method.name" if spec.method.supervised else "dar.labels"
    raise ValueError(
        f"{field}: learns from at least two classes, and evaluate.holdout leaves {classes or 0} of "
        "them to train on; hold less out, or add images of other classes"
    )
