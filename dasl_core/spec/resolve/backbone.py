"""Choose the image size and the stem."""

from typing import NamedTuple

from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import OWN_BACKBONE, SMALL_STEM_PATCHES, SMALL_STEMS, Stem
from dasl_core.spec.locations import WEIGHTS_ENDINGS
from dasl_core.spec.problems import Problems
from dasl_core.spec.resolve.facts import DatasetFacts
from dasl_core.spec.weights_record import WeightsRecord

# Images up to this size are small: at timm's stride of 32, 64 pixels give a last feature map of 2x2.
SMALL_UP_TO = 64
# Largest image size with a "small" stem. A ViT has as many patches at every size, but a ResNet computes 16 times as much
# as with timm's stem: a ResNet-18 2.2 GMAC at 64 pixels, and 0.33 with timm's stem at `LEAST_FOR_RESNETS`, which see more
# than 64 pixels with timm's stem would.
SMALL_STEM_UP_TO = {"resnet": 39, "vit": SMALL_UP_TO}
LEAST_FOR_RESNETS = 96


class ChosenBackbone(NamedTuple):
    """The sizes and the stem of a backbone.

    Attributes:
        smallest_size: smallest size of images and local crops, in pixels.
        crop_multiple: unit of the sizes of local crops, in pixels; 1 for any size, None if the network only takes
            `image_size`.
    """

    image_size: int
    smallest_size: int
    stem: Stem
    patch_size: int | None
    crop_multiple: int | None


def choose_backbone(
    backbone: Backbone, facts: DatasetFacts, record: WeightsRecord, problems: Problems
) -> ChosenBackbone:
    """Choose the image size, the stem, and the patch size of a ViT."""
    info = backbone.info
    given = backbone.image_size
    size = _automatic_size(backbone, facts, record) if given == "auto" else given
    stem = backbone.stem
    has_small = info.family in SMALL_STEMS
    if backbone.drop_path not in ("auto", 0) and not info.drop_path:
        problems.add(
            "backbone.drop_path",
            f"must be 0 for {backbone.name}, which timm builds without stochastic depth",
            str(backbone.drop_path),
            "0",
        )
    if stem == "auto":
        stem = _automatic_stem(backbone, size, record)
    elif stem == "small" and not has_small:
        problems.add(
            "backbone.stem",
            f"must be standard for {backbone.name}: only ResNets and ViTs have a stem for small images",
            stem,
            "standard, with a larger backbone.image_size for small images",
        )
    multiple, smallest = info.size_multiple, info.smallest_size
    if stem == "small":
        smallest = 1  # its larger feature maps allow all sizes
        if info.patch_size is not None:
            multiple = SMALL_STEM_PATCHES
    fitting = max(smallest, size // multiple * multiple)
    if info.sizes == "fixed":
        fitting = info.image_size
    if given == "auto":
        size = fitting
    elif size != fitting and info.sizes == "fixed":
        problems.add(
            "backbone.image_size",
            f"must be {fitting} for {backbone.name}, which takes no other size",
            str(size),
            str(fitting),
        )
    elif size % multiple:
        problems.add(
            "backbone.image_size",
            f"must be divisible by {multiple} for {backbone.name} with its {stem} stem",
            str(size),
            f"such as {fitting}",
        )
    elif size < smallest:
        problems.add(
            "backbone.image_size",
            f"must be at least {smallest} for {backbone.name} with its {stem} stem, which cannot compute "
            "features of smaller images",
            str(size),
            f"{smallest} or larger",
        )
    patch = info.patch_size
    if stem == "small" and patch is not None:
        patch = multiple = size // SMALL_STEM_PATCHES
    _check_record(size, stem, backbone, record, problems)
    several = info.sizes in ("any", "dynamic")
    return ChosenBackbone(size, smallest, stem, patch, multiple if several else None)


def check_frozen_batch_norm(backbone: Backbone, has_weights: bool, problems: Problems) -> None:
    """Check that batch normalization has statistics to keep, which random weights lack."""
    given = backbone.freeze_batch_norm
    if given not in ("auto", "none") and backbone.info.batch_norm and not has_weights:
        problems.add(
            "backbone.freeze_batch_norm",
            "would keep the statistics of random weights, since backbone.pretrained is null",
            repr(given),
            "'none', or backbone.pretrained with weights to start from",
        )


def choose_features(backbone: Backbone, own_features: int | None, problems: Problems) -> int:
    """Return the width of the features; `own_features` is as in `resolve`."""
    if own_features is None:
        if not backbone.is_own:
            return backbone.info.features
        problems.add(
            "backbone.name",
            "is a network that Python code passes to pretrain, with its width to resolve(own_features=...); "
            "jobs and commands cannot train it",
            repr(OWN_BACKBONE),
            "the name of a timm model",
        )
        return 1
    if not backbone.is_own:
        problems.add(
            "backbone.name",
            "is a model of timm, whose width is known, and own_features is given",
            repr(backbone.name),
            f"{OWN_BACKBONE!r}, or no own_features",
        )
    return own_features


def _automatic_size(backbone: Backbone, facts: DatasetFacts, record: WeightsRecord) -> int:
    if record.image_size is not None:
        return record.image_size
    size = min(224, facts.median_size // 32 * 32)
    # The stem for small images has a stride of 4 or 8, so rounding to 32 would waste pixels.
    small = min(SMALL_UP_TO, facts.median_size // 8 * 8)
    stem = backbone.stem
    if stem == "auto":
        stem = _automatic_stem(backbone, small, record)
    if size <= SMALL_UP_TO and stem == "small":
        size = small
    elif backbone.info.family == "resnet" and small > SMALL_STEM_UP_TO["resnet"]:
        size = max(LEAST_FOR_RESNETS, size)
    return max(32, size)


def _automatic_stem(backbone: Backbone, image_size: int, record: WeightsRecord) -> Stem:
    if backbone.info.family not in SMALL_STEMS:
        return "standard"
    if record.stem is not None:
        return record.stem
    # Most likely for a checkpoint that cannot be read here; workers check it.
    is_small = image_size <= SMALL_STEM_UP_TO[backbone.info.family]
    return "small" if is_small and not starts_from_file(backbone) else "standard"


def starts_from_file(backbone: Backbone) -> bool:
    """Whether the initial weights are a file rather than a checkpoint folder."""
    return backbone.pretrained is not None and backbone.pretrained.endswith(WEIGHTS_ENDINGS)


def _check_record(
    image_size: int,
    stem: Stem,
    backbone: Backbone,
    record: WeightsRecord,
    problems: Problems,
) -> None:
    """Check the stem and image size of an initial checkpoint; files are adapted."""
    if backbone.pretrained is None or starts_from_file(backbone):
        return
    expected = {"image_size": record.image_size, "stem": record.stem}
    resolved = {"image_size": image_size, "stem": stem}
    for name, value in expected.items():
        if value not in (None, resolved[name]):
            problems.add(
                f"backbone.{name}",
                f"must be {value}, that of the checkpoint of backbone.pretrained",
                str(resolved[name]),
                f"{value}, or auto",
            )
