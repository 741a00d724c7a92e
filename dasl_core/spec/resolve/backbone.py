"""Choose the image size and the stem."""

from typing import Literal

from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.resolve.facts import DatasetFacts

# Largest image that gets a "small" stem: at timm's stride of 32, 64 pixels leave a last feature map
# of only 2x2.
SMALL_STEM_UP_TO = 64
# A ViT with a small stem sees 8x8 patches, as ViTs on CIFAR (patch 4 at 32 pixels) commonly do.
SMALL_STEM_PATCHES = 8


def choose_backbone(
    backbone: Backbone, facts: DatasetFacts, problems: list[FieldProblem]
) -> tuple[int, Literal["standard", "small"], int | None]:
    """Choose the image size, the stem, and with it the patch size of a ViT."""
    info = BACKBONES[backbone.name]
    given = backbone.image_size
    size = _fitting_size(facts) if isinstance(given, str) else given
    stem = backbone.stem
    if stem == "auto":
        stem = "small" if size <= SMALL_STEM_UP_TO else "standard"
    patch = info.patch_size
    if patch is not None:
        unit = SMALL_STEM_PATCHES if stem == "small" else patch
        fitting = max(1, size // unit) * unit
        if given == "auto":
            size = fitting
        elif size != fitting:
            problems.append(
                FieldProblem(
                    "backbone.image_size",
                    f"must be divisible by {unit} for {backbone.name} with its {stem} stem",
                    str(size),
                    f"such as {fitting}",
                )
            )
        if stem == "small":
            patch = size // SMALL_STEM_PATCHES
    return size, stem, patch


def _fitting_size(facts: DatasetFacts) -> int:
    return max(32, min(224, facts.median_size // 32 * 32))
