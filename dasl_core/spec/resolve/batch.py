"""Choice of the global batch size and its number of images per class."""

import math

from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.resolve.facts import DatasetFacts, training_classes, training_images

# GPUs' matrix units work on multiples of 8, which people also expect.
_ROUND = 8
# Our choice: with fewer images, contrastive losses have few negatives, and batch statistics are noise.
_WORTH_A_STEP = 32


def choose_batch(spec: JobSpec, facts: DatasetFacts, problems: Problems) -> tuple[int, int | None]:
    """Choose the global batch size and its number of images per class."""
    train, workers = spec.train, spec.resources.workers
    images = training_images(spec, facts)
    batch, per_class = train.batch_size, train.samples_per_class
    if per_class == "auto":
        per_class = spec.method.samples_per_class
    if per_class is not None and per_class > images:
        problems.add(
            "train.samples_per_class",
            f"is more than the {images} images that the data set leaves for training",
            str(per_class),
            f"at most {images}",
        )
        per_class = None
    if isinstance(batch, str):
        parts, together = workers * train.micro_batches, per_class or 1
        # Two images or classes, since a single one cannot be compared.
        least = max(2 * together, 2 * train.micro_batches)
        batch = _fitting_batch(images, math.lcm(parts, together), least)
        if batch > images:
            problems.append(_too_few_images(spec, facts, batch))
    elif batch > images:
        problems.add(
            "train.batch_size",
            f"is larger than the {images} images that the data set leaves for training",
            str(batch),
            f"at most {images}",
        )
    if batch // train.micro_batches < 2 and spec.method.has_single_view_pass:
        problems.add(
            "train.micro_batches",
            f"leaves one image of the batch of {batch} for each pass through the network, and a "
            "batch norm needs two",
            str(train.micro_batches),
            f"at most {max(1, batch // 2)}",
        )
    if per_class is not None:
        _check_batch_classes(spec, facts, batch, per_class, problems)
    return batch, per_class


def _fitting_batch(images: int, multiple_of: int, least: int) -> int:
    """Return the batch of a number of images, if possible a multiple of 8.

    At most 256, and an eighth of the images, so that an epoch has eight steps; but up to `_WORTH_A_STEP` images where
    two steps are left.
    """
    largest = min(256, max(images // 8, min(_WORTH_A_STEP, images // 2)))
    round_number = math.lcm(multiple_of, _ROUND)
    if largest >= max(least, round_number):
        multiple_of = round_number
    return multiple_of * max(largest // multiple_of, math.ceil(least / multiple_of))


def _too_few_images(spec: JobSpec, facts: DatasetFacts, needed: int) -> FieldProblem:
    """Describe that a data set is smaller than the smallest batch, for the responsible field."""
    images = training_images(spec, facts)
    for field, parts in (
        ("resources.workers", spec.resources.workers),
        ("train.micro_batches", spec.train.micro_batches),
    ):
        if parts > 1:
            return FieldProblem(
                field,
                f"needs a batch of {needed} images, and the data set leaves {images} for training",
                str(parts),
                f"at most {max(1, images // (needed // parts))}",
            )
    had = f"has {facts.num_images} image{'s' if facts.num_images > 1 else ''}"
    left = "" if images == facts.num_images else f", which leave {images} for training"
    return FieldProblem(
        "dataset",
        f"{had}{left}; at least {needed} are needed",
        repr(spec.dataset),
        "a data set with more images",
    )


def _check_batch_classes(
    spec: JobSpec, facts: DatasetFacts, batch: int, per_class: int, problems: Problems
) -> None:
    """Check that a batch has images of several classes if its method compares them."""
    if batch % per_class:
        problems.add(
            "train.batch_size",
            f"must be divisible by train.samples_per_class, which is {per_class}",
            str(batch),
            f"such as {max(1, batch // per_class) * per_class}",
        )
    elif spec.method.needs_pairs and batch == per_class:
        problems.add(
            "train.batch_size",
            f"holds a single class, since train.samples_per_class is {per_class}, and "
            f"{spec.method.name} learns from images of different classes",
            str(batch),
            f"at least {2 * per_class}",
        )
    elif spec.method.needs_pairs and per_class == 1 and batch <= training_classes(spec, facts):
        problems.add(
            "train.samples_per_class",
            f"leaves each image of a batch alone in its class, and {spec.method.name} learns "
            "from images of the same class",
            "1",
            "at least 2",
        )
