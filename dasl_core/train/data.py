"""Training and held-out images of a run, and their order."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dasl_core.data.cache import DIRECTORY_VARIABLE, MAX_BYTES_VARIABLE, hold_folder
from dasl_core.data.cache_build import OnRead
from dasl_core.data.canvases import Canvases
from dasl_core.data.decode import is_transient
from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import EpochLoader
from dasl_core.data.split import holdout_events, split
from dasl_core.data.strings import Strings
from dasl_core.data.unreadable import damaged_event, too_many, unreadable_error, unreadable_event
from dasl_core.distributed import gather_objects
from dasl_core.spec import ResolvedJobSpec
from dasl_core.spec.resolve.evaluate import unmatched_classes
from dasl_core.train.input_bound import Reading
from dasl_core.train.reporter import Reporter


@dataclass
class TrainingData:
    """The data sets of a run.

    Attributes:
        index: index of the data set to train on.
        train: its training images.
        held_out: images to evaluate on, from the same or another data set.
        loader: batches of training images.
        labels: (len(index),) int64: classes of the training images, counted from 0, and -1 for all
            other images; None without labels.
        num_classes: number of classes among the training images; None without labels.
        sets: data sets by their names in the spec; the first is the training set.
        events: type, message and data of what is to be reported about the holdout.
        damaged: excluded images that cannot be decoded, with the reasons, by data set.
        unreadable: number of images that can no longer be read, by data set.
    """

    index: DatasetIndex
    train: ImageSet
    held_out: ImageSet
    loader: EpochLoader
    labels: Tensor | None
    num_classes: int | None
    sets: dict[str, Canvases]
    damaged: dict[str, dict[int, str]]
    events: list[tuple[str, str, dict[str, Any]]]
    unreadable: dict[str, int] = field(default_factory=dict)

    @classmethod
    def select(
        cls,
        spec: ResolvedJobSpec,
        sets: dict[str, Canvases],
        control: dist.ProcessGroup | None,
    ) -> "TrainingData":
        """Select the images to train and to evaluate on, without damaged ones. Equal on all ranks.

        Args:
            sets: as `open_sets` returns them.
            control: CPU group of all ranks; None with one rank.

        Raises:
            ValueError: fewer training images remain than a batch has, or fewer than two classes where a field
                requires them.
        """
        canvases, *others = sets.values()
        index = canvases.index
        damaged = {name: damaged_images(canvases, control) for name, canvases in sets.items()}
        left_out, *left_out_of_others = (np.array(sorted(images)) for images in damaged.values())
        events: list[tuple[str, str, dict[str, Any]]] = []
        if not others:
            parts, holdout = split(index, spec.evaluate.holdout), spec.evaluate.holdout
            events = [] if holdout is None else holdout_events(spec.dataset, index, holdout, parts)
            train_set = ImageSet(canvases, np.setdiff1d(parts.train, left_out))
            held_out = ImageSet(canvases, np.setdiff1d(parts.held_out, left_out))
        else:
            train_set = ImageSet(canvases, np.setdiff1d(np.arange(len(index)), left_out))
            evaluated = np.arange(len(others[0].index))
            held_out = ImageSet(others[0], np.setdiff1d(evaluated, left_out_of_others[0]))
            names, trained = Counter(held_out.class_names()), {*(train_set.class_names() or ())}
            if message := unmatched_classes(names, trained):
                events.append(("classes_unmatched", message, {"dataset": spec.evaluate.dataset}))

        labels, num_classes, train_labels = None, None, None
        if index.labels is not None:
            indices = torch.from_numpy(train_set.indices)
            classes, class_indices = np.unique(index.labels[train_set.indices], return_inverse=True)
            num_classes, train_labels = len(classes), torch.from_numpy(class_indices)
            labels = torch.full((len(index),), -1)
            labels[indices] = train_labels
        check_classes(spec, num_classes or 0)
        loader = EpochLoader(
            canvases,
            train_set.indices,
            spec.train.batch_size,
            spec.train.seed,
            labels=train_labels,
            samples_per_class=spec.train.samples_per_class,
        )
        return cls(index, train_set, held_out, loader, labels, num_classes, sets, damaged, events)

    def check_images(self, reporter: Reporter, control: dist.ProcessGroup | None) -> None:
        """Report images that can no longer be read; fail if there are too many.

        The ranks exchange the unreadable images that each of them has read, so all decide the same.

        Raises:
            ValueError: too many images of a data set cannot be read.
        """
        for name, canvases in self.sets.items():
            unreadable = _of_all_ranks(dict(canvases.unreadable), control)
            for position in self.damaged[name]:
                unreadable.pop(position, None)
            check_readable(name, canvases.index, unreadable)
            if unreadable and name not in self.unreadable:
                message, data = unreadable_event(name, canvases.index, unreadable)
                reporter.event("images_unreadable", message, data)
            if unreadable:
                self.unreadable[name] = len(unreadable)

    def reading(self, threads: int, device: torch.device) -> Reading:
        """Describe how this rank reads the training images, with this many threads."""
        canvases = self.train.canvases
        return Reading(threads, canvases.decodes, canvases.not_cached, device.type == "cpu")

    def train_labels(self) -> Tensor | None:
        """Return the classes (N,) of the training images, in order; None without labels."""
        return None if self.labels is None else self.labels[torch.from_numpy(self.train.indices)]

    def facts(self) -> dict[str, int | None]:
        """Return facts about the data for the model card."""
        return {
            "images": len(self.index),
            "classes": None if self.index.labels is None else len(self.index.class_names),
            "train_images": len(self.train),
            "held_out_images": len(self.held_out),
        }

    def digest(self) -> str:
        """Compute a digest of the names and sizes of the training images, in order."""
        indices = self.train.indices
        paths = self.index.paths
        packed = paths if isinstance(paths, Strings) else Strings.pack(paths)
        content, separator = hashlib.blake2b(digest_size=16), b""
        for names in packed.encoded_in_chunks(indices):
            content.update(separator + b"\0".join(names))
            separator = b"\0"
        content.update(self.index.sizes[indices].astype("<i4").tobytes())
        return content.hexdigest()

    def digest_labels(self) -> dict[str, Any]:
        """Return the classes of the training images, and a digest of the class of each, in order."""
        if self.index.labels is None:
            return {"classes": [], "labels": None}
        used, classes = np.unique(self.index.labels[self.train.indices], return_inverse=True)
        digest = hashlib.blake2b(classes.astype("<i4").tobytes(), digest_size=16).hexdigest()
        return {"classes": [self.index.class_names[number] for number in used], "labels": digest}

    def close(self) -> None:
        """Stop the decoding threads."""
        for canvases in self.sets.values():
            canvases.close()


def check_readable(name: str, index: DatasetIndex, unreadable: dict[int, str]) -> None:
    """Raise a ValueError with examples if too many images of a data set cannot be read."""
    if too_many(len(unreadable), len(index)):
        raise ValueError(unreadable_error(name, index, unreadable))


def open_canvases(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    cache: Path | None,
    threads: int,
    on_read: OnRead = lambda images: None,
) -> Canvases:
    """Open the images of a data set in the size, type and form of a spec; arguments as for `Canvases`."""
    return Canvases(
        index.as_type(spec.backbone.pixel_type),
        spec.backbone.image_size,
        spec.backbone.in_channels,
        cache=cache,
        threads=threads,
        form=spec.train.image_cache,
        on_read=on_read,
    )


def open_sets(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    evaluate_on: DatasetIndex | None,
    cache: Path,
    evaluate_cache: Path | None,
    threads: int,
    on_read: OnRead = lambda images: None,
) -> dict[str, Canvases]:
    """Open the data sets of a run, by name, and fill their caches; arguments as for `open_images`.

    Args:
        on_read: called with the number of images of all data sets that are cached so far, while caches are
            built.
    """
    if evaluate_on is None:
        return {spec.dataset: open_canvases(spec, index, cache, threads, on_read)}
    assert spec.evaluate.dataset is not None, "evaluate_on is the index of this data set"
    assert evaluate_cache is not None, "it is the folder of this data set"
    # Otherwise the first cache may evict the prepared second one.
    with hold_folder(evaluate_cache):
        train = open_canvases(spec, index, cache, threads, on_read)
        evaluate = open_canvases(
            spec, evaluate_on, evaluate_cache, threads, lambda images: on_read(len(index) + images)
        )
    return {spec.dataset: train, spec.evaluate.dataset: evaluate}


def report_images(
    sets: dict[str, Canvases],
    damaged: dict[str, dict[int, str]],
    reporter: Reporter,
    control: dist.ProcessGroup | None,
) -> None:
    """Report damaged images by data set, and data sets in shards or, on any rank, decoded in every epoch."""
    for name, images in damaged.items():
        if images:
            reporter.event("images_damaged", *damaged_event(name, sets[name].index, images))
    for name, canvases in sets.items():
        if (stored := canvases.stored) is not None:
            coding, size = stored
            message = f"The decoded images of {name} are stored in shards ({coding}), {size >> 20} MiB on this node"
            reporter.event(
                "images_cached", message, {"dataset": name, "form": coding, "bytes": size}
            )
        reasons = [why for why in gather_objects(canvases.not_cached, control) if why]
        if reasons:
            message = (
                f"The decoded images of {name} cannot be cached, so every epoch decodes them again, which "
                f"is slow: {reasons[0]}. Free disk space, or set {DIRECTORY_VARIABLE} or "
                f"{MAX_BYTES_VARIABLE}"
            )
            reporter.event("images_not_cached", message, {"dataset": name})


def damaged_images(canvases: Canvases, control: dist.ProcessGroup | None) -> dict[int, str]:
    """Return the images that any rank cannot decode because of their content, with the reasons."""
    mine = {at: why for at, why in canvases.unreadable.items() if not is_transient(why)}
    return _of_all_ranks(mine, control)


def _of_all_ranks(reasons: dict[int, str], control: dist.ProcessGroup | None) -> dict[int, str]:
    return {at: why for of_rank in gather_objects(reasons, control) for at, why in of_rank.items()}


def check_classes(spec: ResolvedJobSpec, classes: int) -> None:
    """Raise a ValueError that names the field if the spec needs classes, and fewer than two are left to train on."""
    regularizers = spec.active_regularizers().values()
    fields = [f"{term.path()}.labels" for term in regularizers if term.pair_labels == "class"]
    if spec.method.supervised:
        fields = ["method.name"]
    if fields and classes < 2:
        raise ValueError(
            f"{fields[0]}: needs at least two classes for training, and evaluate.holdout leaves "
            f"{classes}. Hold out less, or add images of other classes."
        )
