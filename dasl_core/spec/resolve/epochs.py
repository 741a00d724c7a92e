"""Choose the number of epochs."""

import math

from dasl_core.spec.job import JobSpec
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.train import Train

FEWEST, MOST = 10, 100
# Our choice: 100 epochs from 500 images on, and a short first run on fewer.
IMAGES_PER_EPOCH = 5


def with_epochs(spec: JobSpec, facts: DatasetFacts) -> JobSpec:
    """Return the spec with a number of epochs in place of "auto"."""
    if spec.train.epochs != "auto":
        return spec
    chosen = MOST
    if spec.recipe != "authors":
        images = training_images(spec, facts)
        chosen = min(MOST, max(FEWEST, round(images / IMAGES_PER_EPOCH)))
    # Validated, since other settings may not fit the number.
    return spec.model_copy(update={"train": spec.train.narrow(Train, epochs=chosen)})


def automatic_interval(spec: JobSpec) -> int:
    """Return the epochs between evaluations, and between checkpoints, so that there are at most ten.

    More would take longer than the epochs between them if there are few images.
    """
    return math.ceil(epochs_of(spec) / 10)


def epochs_of(spec: JobSpec) -> int:
    """Return the epochs of a spec that went through `with_epochs`."""
    epochs = spec.train.epochs
    assert epochs != "auto", "chosen before everything that depends on it"
    return epochs
