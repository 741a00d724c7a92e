"""Settings of each pretraining method, discriminated by `name`.

The code of a method lives in `dasl_core/methods/<name>.py`; its settings live here because the API
validates them in a process that has no torch. What a method's paper prescribes for the settings that
all methods share (views, optimizer) stands beside it as its `recipe`: "auto" means the recipe.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from dasl_core.spec.base import Auto, Part

Width = Annotated[int, Field(ge=1, le=65_536)]
EmbeddingWidth = Annotated[int, Field(ge=2, le=65_536)]


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Recipe(NamedTuple):
    """What the shared "auto" settings become for a method. Tuples hold one entry a view.

    Attributes:
        lr: peak rate at a global batch of 256 of each optimizer; what is missing is `BASE_LR`'s.
        weight_decay: the same for the decay; a pair is the start and the end of a cosine.
        clip: largest gradient norm, or None; `clip_each` applies it to each parameter by itself.
        blur, solarize: probabilities on images large enough for a blur.
    """

    lr: Mapping[str, float] = NOTHING
    weight_decay: Mapping[str, float | tuple[float, float]] = NOTHING
    clip: float | None = None
    clip_each: bool = False
    crop_scale: tuple[float, float] = (0.2, 1.0)
    jitter: float = 0.5
    grayscale: float = 0.2
    blur: tuple[float, ...] = (0.5,)
    solarize: tuple[float, ...] = (0.0,)


class Given(NamedTuple):
    """What a method's own "auto" settings are resolved from."""

    features: int
    """Width of the backbone's features."""
    image_size: int
    patch_size: int | None
    """In pixels; None for a network that takes images of any size."""
    train_images: int
    batch_size: int
    epochs: int


class MethodPart(Part):
    """What the settings of every method have in common."""

    recipe: ClassVar[Recipe] = Recipe()
    supervised: ClassVar[bool] = False
    """Whether the loss needs class labels; there is then one view of an image."""
    samples_per_class: ClassVar[int | None] = None
    """Images of each class in a batch of a supervised method."""
    has_prototypes: ClassVar[bool] = False
    """Whether the method assigns images to prototypes, which can stand for clusters."""

    name: Any

    @property
    def num_views(self) -> int:
        """Views of each image, the local crops last."""
        return 1 if self.supervised else 2

    def resolve(self, given: Given) -> Self:
        """The same settings with every "auto" replaced."""
        return self


class Projected(MethodPart):
    """A method with a projection head of its own width."""

    projection_dim: EmbeddingWidth = Field(128, description="Width of the embedding the loss sees.")
    hidden_dim: Width | Auto = Field(
        "auto",
        description="Width of the projection head's hidden layer; \"auto\": the backbone's width.",
    )

    def resolve(self, given: Given) -> Self:
        """A hidden layer as wide as the features."""
        if self.hidden_dim != "auto":
            return self
        return self.model_copy(update={"hidden_dim": given.features})


class MultiCrop(MethodPart):
    """A method with small local crops beside its two global views (Caron et al. 2020)."""

    local_crops: int = Field(
        6, ge=0, le=98, description="Small crops of each image beside the two global views."
    )
    local_size: Annotated[int, Field(ge=8, le=1024)] | Auto = Field(
        "auto",
        description='Pixels a side of a local crop; "auto": 3/7 of image_size (96 of 224), rounded to '
        "whole patches.",
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.4), description="Least and greatest share of the area that a local crop keeps."
    )

    @property
    def num_views(self) -> int:
        """Two global views, then the local crops."""
        return 2 + self.local_crops

    def resolve(self, given: Given) -> Self:
        """Local crops in whole patches."""
        if self.local_size != "auto":
            return self
        unit = given.patch_size or 1
        size = max(1, round(given.image_size * 3 / 7 / unit)) * unit
        return self.model_copy(update={"local_size": max(8, size)})


class SimCLR(Projected):
    """SimCLR: NT-Xent over two views (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709)."""

    name: Literal["simclr"] = "simclr"
    temperature: float = Field(0.2, gt=0, le=10, description="Divides the cosine similarities.")


class SwAV(MultiCrop, Projected):
    """SwAV: predicts a view's prototypes from the other views (Caron et al., NeurIPS 2020,
    https://arxiv.org/abs/2006.09882)."""

    recipe: ClassVar[Recipe] = Recipe(
        # The paper's rate, 0.6 at 256 for its large-batch optimizer, is LARS's; its decay is for all.
        lr={"lars": 0.6},
        weight_decay={"sgd": 1e-6, "lars": 1e-6},
        crop_scale=(0.14, 1.0),
    )
    has_prototypes: ClassVar[bool] = True

    name: Literal["swav"] = "swav"
    temperature: float = Field(
        0.1, gt=0, le=10, description="Divides the cosines with prototypes in the prediction."
    )
    prototypes: Annotated[int, Field(ge=2, le=1_000_000)] | Auto = Field(
        "auto",
        description='Number of prototypes; "auto": 2.5 times the square root of the number of '
        "training images (2,800 for ImageNet, where the paper has 3,000).",
    )
    epsilon: float = Field(
        0.05,
        ge=0.03,
        le=1,
        description="How smooth the codes are; below 0.03 float32 would underflow.",
    )
    sinkhorn_iterations: int = Field(
        3, ge=1, le=1000, description="Iterations of Sinkhorn's algorithm, which makes the codes."
    )
    queue_length: Annotated[int, Field(ge=0, le=10_000_000)] | Auto = Field(
        "auto",
        description="Images of earlier batches, of all ranks together, that share the prototypes with "
        'the batch; 0: none; "auto": whole batches, until there are a third more images than '
        "prototypes.",
    )
    queue_start_epoch: Annotated[int, Field(ge=0)] | Auto = Field(
        "auto",
        description='Epochs before the queue is used; "auto": 7.5% of all, at most 15 (the paper: 15 '
        "of 200).",
    )
    freeze_prototypes_epochs: int = Field(
        1, ge=0, description="Epochs in which the prototypes stay as they were drawn."
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.14), description="Least and greatest share of the area that a local crop keeps."
    )

    def resolve(self, given: Given) -> Self:
        """Sizes of crops and head; prototypes by the data set's size, the queue by theirs."""
        resolved = Projected.resolve(MultiCrop.resolve(self, given), given)
        prototypes, queue, start = self.prototypes, self.queue_length, self.queue_start_epoch
        if prototypes == "auto":
            prototypes = max(2, round(2.5 * given.train_images**0.5))
        if queue == "auto":
            missing = int(prototypes) * 4 / 3 - given.batch_size
            queue = given.batch_size * max(0, math.ceil(missing / given.batch_size))
        if start == "auto":
            start = min(15, round(0.075 * given.epochs))
        return resolved.model_copy(
            update={"prototypes": prototypes, "queue_length": queue, "queue_start_epoch": start}
        )


class WithTeacher(MethodPart):
    """A method whose targets come from a teacher: a moving average of the student."""

    teacher_momentum: Annotated[float, Field(ge=0, lt=1)] | Auto = Field(
        "auto",
        description=(
            "Share of itself that the teacher keeps at the first step; it grows to 1 in a half cosine. "
            '"auto": by the length of the training, 0.97 to 0.996.'
        ),
    )
    keep: Literal["student", "teacher"] = Field(
        "student", description="Whose backbone is evaluated and exported."
    )


class BYOL(WithTeacher):
    """BYOL: one view predicts the other's teacher (Grill et al., NeurIPS 2020,
    https://arxiv.org/abs/2006.07733)."""

    recipe = Recipe(
        lr={"lars": 0.2},
        weight_decay={"lars": 1.5e-6},
        crop_scale=(0.08, 1.0),
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
    )
    # Base momentum of the paper's code by epochs; between them it is interpolated.
    _MOMENTA: ClassVar = ((40, 0.97), (100, 0.99), (300, 0.99), (1000, 0.996))

    name: Literal["byol"] = "byol"
    projection_dim: EmbeddingWidth = Field(
        256, description="Width of the projections and of their predictions."
    )
    hidden_dim: Width | Auto = Field(
        "auto",
        description='Width of the hidden layers of projector and predictor; "auto": twice the '
        "backbone's features (4096 for a ResNet-50).",
    )

    def resolve(self, given: Given) -> Self:
        """Heads as wide as the paper's beside its ResNet-50; a faster teacher for short trainings."""
        update: dict[str, Any] = {}
        if self.hidden_dim == "auto":
            update["hidden_dim"] = min(65_536, 2 * given.features)
        if self.teacher_momentum == "auto":
            update["teacher_momentum"] = _interpolated(given.epochs, self._MOMENTA)
        return self.model_copy(update=update)


def _interpolated(x: float, points: Sequence[tuple[float, float]]) -> float:
    """Linear between `points`, constant outside; to four digits, since people read it."""
    for (low, start), (high, end) in pairwise(points):
        if x < high:
            return round(start + (end - start) * max(0.0, x - low) / (high - low), 4)
    return points[-1][1]


# Every method's settings stand in this union; `METHODS` finds them by their `name`.
ALL = (
    SimCLR,
    BYOL,
    SwAV,
)
MethodSettings = Annotated[
    SimCLR | BYOL | SwAV,
    Field(discriminator="name", description="The pretraining method, chosen by `name`."),
]

METHODS: dict[str, type[MethodPart]] = {
    settings.model_fields["name"].default: settings for settings in ALL
}
