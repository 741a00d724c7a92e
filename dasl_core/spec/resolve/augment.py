"""Resolve the augmentations: the method's recipe, fitted to the image size."""

from dasl_core.spec.augment import Augment
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.resolve.backbone import SMALL_STEM_UP_TO
from dasl_core.spec.resolved import ResolvedAugment

# Blur or inversion makes smaller images unrecognizable: lightly and solo-learn also omit both on
# CIFAR.
BLUR_FROM = SMALL_STEM_UP_TO + 1


def resolve_augment(augment: Augment, method: MethodConfig, image_size: int) -> ResolvedAugment:
    recipe = method.recipe
    large = image_size >= BLUR_FROM
    chosen = {
        "crop_scale": recipe.crop_scale,
        "jitter": recipe.jitter,
        "grayscale": recipe.grayscale,
        "blur": recipe.blur if large else 0.0,
        "solarize": recipe.solarize if large else 0.0,
    }
    return augment.narrow(
        ResolvedAugment,
        **{
            name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
            for name, value in chosen.items()
            if getattr(augment, name) == "auto"
        },
    )
