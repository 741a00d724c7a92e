"""Resolve the augmentations: the method's recipe, fitted to the image size."""

from dasl_core.spec.augment import Augment
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import Problems
from dasl_core.spec.recipes import SMALL
from dasl_core.spec.resolve.backbone import SMALL_UP_TO
from dasl_core.spec.resolved import ResolvedAugment

# Blur or inversion makes smaller images unrecognizable; lightly and solo-learn also omit both on CIFAR.
BLUR_FROM = SMALL_UP_TO + 1


def check_augment(
    given: Augment, resolved: ResolvedAugment, channels: int, problems: Problems
) -> None:
    """Refuse settings that change no view: saturation jitter without jitter, and dropping the only band."""
    if given.channel_drop > 0 and channels == 1:
        cause, instead = "backbone.in_channels: 1", "backbone.in_channels above 1"
        problems.add_no_effect("augment.channel_drop", f"{given.channel_drop:g}", cause, instead)
    usual = SMALL["augment.saturation"]
    if given.saturation in ("auto", usual) or resolved.jitter * resolved.jitter_probability > 0:
        return
    cause = f"augment.jitter{'' if resolved.jitter == 0 else '_probability'}"
    saturation = f"{given.saturation:g}"
    problems.add_no_effect("augment.saturation", saturation, f"{cause}: 0", f"{cause} above 0")


def resolve_augment(augment: Augment, method: MethodConfig, pixels: int) -> ResolvedAugment:
    """Replace "auto" by the method's settings; `pixels` are those of the images' side that the network's input has."""
    recipe = method.recipe
    large = pixels >= BLUR_FROM
    settings = {
        "crop_scale": recipe.crop_scale,
        "jitter": recipe.jitter,
        "grayscale": recipe.grayscale,
        "blur": recipe.blur if large else 0.0,
        "solarize": recipe.solarize if large else 0.0,
    }
    settings = {
        name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
        for name, value in settings.items()
    }
    return augment.without_auto(ResolvedAugment, settings)
