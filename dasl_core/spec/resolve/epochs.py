"""Choose the number of epochs."""

import math

from dasl_core.spec.job import JobSpec
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.train import Train

FEWEST, MOST = 10, 100
# Our choice: 100 epochs from 500 images on, and a short run on fewer.
IMAGES_PER_EPOCH = 5


def with_epochs(spec: JobSpec, facts: DatasetFacts) -> JobSpec:
    """Replace `train.epochs: auto` by a number."""
    if spec.train.epochs != "auto":
        return spec
    chosen = MOST
    if spec.recipe != "authors":
        images = training_images(spec, facts)
        chosen = min(MOST, max(FEWEST, round(images / IMAGES_PER_EPOCH)))
    # Validated, because other settings may not fit the number.
    return spec.model_copy(update={"train": spec.train.narrow(Train, epochs=chosen)})


def automatic_interval(spec: JobSpec) -> int:
    """Return the interval of evaluations and checkpoints in epochs, for at most ten of each.

    With few images, more would take longer than the epochs between them.
    """
    return math.ceil(resolved_epochs(spec) / 10)


def resolved_epochs(spec: JobSpec) -> int:
    """Return the number of epochs of a spec from `with_epochs`."""
    epochs = spec.train.epochs
    assert epochs != "auto", "chosen before everything that depends on it"
    return epochs
