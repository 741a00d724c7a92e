"""Facts about a data set, from which "auto" settings are resolved."""

from pydantic import Field

from dasl_core.spec.base import SpecModel
from dasl_core.spec.job import JobSpec


class DatasetFacts(SpecModel):
    """Facts about an ingested data set."""

    num_images: int = Field(ge=1)
    num_classes: int | None = Field(description="Number of classes; null if there are no labels.")
    median_size: int = Field(ge=1, description="Median of the images' shorter side, in pixels.")


def training_images(spec: JobSpec, facts: DatasetFacts) -> int:
    """Return the number of training images; an expected value if whole classes are held out."""
    evaluate = spec.evaluate
    if evaluate.dataset is not None or evaluate.holdout is None:
        return facts.num_images
    return facts.num_images - round(facts.num_images * evaluate.holdout.fraction)


def training_classes(spec: JobSpec, facts: DatasetFacts) -> int:
    """Return the number of classes that are trained on; 0 without labels."""
    classes, holdout = facts.num_classes or 0, spec.evaluate.holdout
    if spec.evaluate.dataset is not None or holdout is None or holdout.by == "image":
        return classes
    return classes - round(classes * holdout.fraction)
