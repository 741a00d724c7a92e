"""Estimate what a resolved job costs."""

from pydantic import Field

from dasl_core.spec.base import SpecModel
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.resolved import ResolvedJobSpec


class Estimate(SpecModel):
    """Estimated cost of a resolved job."""

    train_images: int
    steps_per_epoch: int
    total_steps: int
    backbone_parameters: int
    state_bytes_per_worker: int = Field(
        description="Weights, gradients and optimizer state of the backbone; no activations."
    )


def estimate(resolved: ResolvedJobSpec, facts: DatasetFacts) -> Estimate:
    """Steps, parameters and state size of a spec that `resolve` returned.

    Raises:
        ValueError: the backbone is one of the user's own, whose size is not known.
    """
    if resolved.backbone.is_own:
        raise ValueError("backbone.name: the size of a network of one's own is not known")
    images = training_images(resolved, facts)
    steps = images // resolved.train.batch_size
    parameters = resolved.backbone.info.parameters
    # float32 weight and gradient, and one moment (SGD, LARS) or two (AdamW, Adam).
    floats = 4 if resolved.train.optimizer.name in ("adamw", "adam") else 3
    return Estimate(
        train_images=images,
        steps_per_epoch=steps,
        total_steps=steps * resolved.train.epochs,
        backbone_parameters=parameters,
        state_bytes_per_worker=4 * floats * parameters,
    )
