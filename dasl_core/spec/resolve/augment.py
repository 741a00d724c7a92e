"""Resolve the augmentations: the method's recipe, fitted to the image size."""

from dasl_core.spec.augment import Augment
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import Problems
from dasl_core.spec.recipes import SMALL
from dasl_core.spec.resolve.backbone import SMALL_STEM_UP_TO
from dasl_core.spec.resolved import ResolvedAugment

# Blur or inversion makes smaller images unrecognizable; lightly and solo-learn also omit both on CIFAR.
BLUR_FROM = SMALL_STEM_UP_TO + 1


def check_augment(
    given: Augment, resolved: ResolvedAugment, channels: int, problems: Problems
) -> None:
    """Refuse settings that change no view: saturation jitter without jitter, and dropping the only band."""
    if given.channel_drop > 0 and channels == 1:
        problems.add(
            "augment.channel_drop",
            "has no effect with backbone.in_channels: 1; remove it or set backbone.in_channels above 1",
            f"{given.channel_drop:g}",
        )
    usual = SMALL["augment.saturation"]
    if given.saturation in ("auto", usual) or resolved.jitter * resolved.jitter_probability > 0:
        return
    cause = "jitter" if resolved.jitter == 0 else "jitter_probability"
    problems.add(
        "augment.saturation",
        f"has no effect with augment.{cause}: 0; remove it or set augment.{cause} above 0",
        f"{given.saturation:g}",
    )


def resolve_augment(augment: Augment, method: MethodConfig, image_size: int) -> ResolvedAugment:
    recipe = method.recipe
    large = image_size >= BLUR_FROM
    settings = {
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
            for name, value in settings.items()
            if getattr(augment, name) == "auto"
        },
    )
