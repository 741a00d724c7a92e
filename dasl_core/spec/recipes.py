"""Recipes: the values of "auto" settings.

A recipe is a table of settings by their dotted names. A value may depend on the job: see `value_for`.
`small` has two parts: tables of constants, and values computed from the data set or the optimizer in
`dasl_core.spec.resolve` and in the method's `resolve`. The other recipes take precedence.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

RecipeName = Literal["authors", "small", "continue"]
Settings = Mapping[str, Any]

NOTHING: Mapping[str, Any] = MappingProxyType({})


class ByFamily(NamedTuple):
    """A value for ViTs and one for all other backbones."""

    vit: Any
    other: Any


class ByEpochs(NamedTuple):
    """Values by number of epochs; the nearest number, by ratio, applies."""

    values: Mapping[int, Any]


class ByBatch(NamedTuple):
    """Values by global batch size; the nearest size, by ratio, applies."""

    values: Mapping[int, Any]


class ByFeatures(NamedTuple):
    """Values by the width of the backbone's features (384 is a ViT-S, 768 a ViT-B); the nearest width applies."""

    values: Mapping[int, Any]


class ByImageSize(NamedTuple):
    """A value for images of at most 64 pixels, and one for larger images."""

    small: Any
    large: Any


class ByOptimizer(NamedTuple):
    """Values by optimizer; "auto" leaves the setting unchanged."""

    values: Mapping[str, Any]


class TeacherMomentum(NamedTuple):
    """A momentum that averages over 1/40 of the steps of a run, from 0.97 up to `most`.

    Otherwise the teacher of a short run would keep the random weights of its heads.
    """

    most: float


class AtMostAllEpochs(NamedTuple):
    """A number of epochs, or all epochs of a shorter run."""

    epochs: int


class FallsAfterShares(NamedTuple):
    """A rate that falls by a factor after shares of a run's epochs."""

    shares: tuple[float, ...]
    factor: float


class ShareOfEpochs(NamedTuple):
    """A share of a run's epochs; whole epochs are rounded up."""

    share: float
    whole: bool = False


class JobFacts(NamedTuple):
    """Facts of a job on which a recipe's values depend.

    Attributes:
        batch: global batch size of the spec; 256 if it is "auto".
        images: number of training images.
        optimizer: optimizer of the spec; if it is "auto", of the recipe.
    """

    family: str
    features: int
    epochs: int
    batch: int
    images: int
    optimizer: str
    has_small_images: bool

    @property
    def steps(self) -> int:
        """Number of optimizer steps of the run, with the assumed batch size."""
        return self.epochs * max(1, self.images // self.batch)


class Authors(NamedTuple):
    """Published settings of a method's authors.

    Attributes:
        families: backbone families with published settings.
        settings: settings by dotted name; tests/fixtures/authors_settings.yaml has the sources.
        from_weights: whether they start from pretrained weights.
    """

    families: tuple[str, ...]
    settings: Settings
    from_weights: bool = False


# `small` for all methods, unless the method's own table overrides it.
SMALL: Settings = {
    "augment.saturation": 1.0,
    "augment.interpolation": "bilinear",
    "backbone.drop_path": 0.0,
    "backbone.pooling": "timm",
    "backbone.freeze_batch_norm": "none",
    "method.local_scale": (0.05, 0.4),
    "method.separate_views": False,
    "train.optimizer.lr_scaling": "linear",
    "train.optimizer.lr_end": 0.0,
    "train.optimizer.layer_decay": 1.0,
    "train.optimizer.head_lr": 1.0,
    "train.optimizer.step_decay": None,
    "train.head_only_epochs": 0,
}

# Start from weights, which should not degrade before the heads have learned. The randomly initialized heads get the
# usual rate, and the backbone a tenth of it. The layer decay is MAE's for fine-tuning (He et al., CVPR 2022,
# table 9); the other values are our choice.
CONTINUE: Settings = {
    "train.optimizer.name": "adamw",
    "train.optimizer.base_lr": ByOptimizer(
        {"adamw": 5e-5, "adam": 5e-5, "sgd": 0.012, "lars": 0.03}
    ),
    "train.optimizer.head_lr": 10.0,
    "train.optimizer.layer_decay": 0.75,
    "train.optimizer.weight_decay": ByOptimizer({"adamw": 0.01}),
    "train.optimizer.weight_decay_end": ByOptimizer({"adamw": 0.01}),
    "train.warmup_epochs": ShareOfEpochs(0.2),
    "train.head_only_epochs": ShareOfEpochs(0.1, whole=True),
    "method.teacher_momentum": TeacherMomentum(most=0.999),
}


def value_for(value: Any, job: JobFacts) -> Any:
    """Return the value of a recipe for one job."""
    match value:
        case ByFamily():
            return value_for(value.vit if job.family == "vit" else value.other, job)
        case ByEpochs():
            return value_for(_nearest(value.values, job.epochs), job)
        case ByBatch():
            return value_for(_nearest(value.values, job.batch), job)
        case ByFeatures():
            return value_for(_nearest(value.values, job.features), job)
        case ByImageSize():
            return value_for(value.small if job.has_small_images else value.large, job)
        case ByOptimizer():
            return value_for(value.values.get(job.optimizer, "auto"), job)
        case TeacherMomentum():
            return round(min(value.most, max(0.97, 1 - 40 / job.steps)), 4)
        case AtMostAllEpochs():
            return min(value.epochs, job.epochs)
        case FallsAfterShares():
            falls = tuple(share * job.epochs for share in value.shares)
            return {"epochs": falls, "factor": value.factor}
        case ShareOfEpochs():
            epochs = value.share * job.epochs
            return math.ceil(epochs) if value.whole else epochs
    return value


def _nearest(values: Mapping[int, Any], number: int) -> Any:
    return values[min(values, key=lambda key: abs(math.log(key / number)))]
