"""Base classes of the settings of methods, and their registry."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator

from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.recipes import NOTHING, Authors, FallsAfterShares, Settings

Width = Annotated[int, Field(ge=1, le=65_536)]
# Below it cosines become numbers that float32 does not hold.
Temperature = Annotated[float, Field(ge=1e-3, le=10)]
EmbeddingWidth = Annotated[int, Field(ge=2, le=65_536)]
CropSize = Annotated[int, Field(ge=8, le=1024)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Outputs = Annotated[int, Field(ge=2, le=1_000_000)]
EmbeddingInit = Literal["uniform", "kaiming"]
Epochs = Annotated[int, Field(ge=0, le=100_000)]


class FixesShapes:
    """Marks a field that decides the shape of a weight: `Annotated[Width, FIXES_SHAPES]`.

    A job that branches off another job's checkpoint cannot change it. The marker adds nothing to the
    JSON Schema.
    """


FIXES_SHAPES = FixesShapes()


class Recipe(NamedTuple):
    """The recipe `small` of a method: what "auto" means in the settings that all methods share.

    It starts from what the method's authors use; docs/spec.md shows both.

    Tuples hold one entry a view.

    Attributes:
        lr: peak rate at a global batch of 256 of each optimizer; without an entry, `BASE_LR` holds.
        weight_decay: the same for the decay; a pair is the start and the end of a cosine.
        clip: largest gradient norm, or None; `clip_each` applies it to each parameter separately.
        blur, solarize: probabilities on images large enough for a blur.
        settings: constants that replace "auto" in other settings, by dotted name.
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
    settings: Settings = NOTHING


# Two views that differ.
BYOL_RECIPE = Recipe(
    lr={"lars": 0.2},
    weight_decay={"lars": 1.5e-6},
    crop_scale=(0.08, 1.0),
    blur=(1.0, 0.1),
    solarize=(0.0, 0.2),
)


class ResolveContext(NamedTuple):
    """Facts that a method's settings are checked and resolved with.

    Attributes:
        backbone: its name, for messages.
        features: width of the backbone's features.
        patch_size: in pixels; None for a network without patches.
        crop_multiple: local crops must be multiples of it, such as a ViT's patch size, in pixels; 1 if they
            may have any size, None if the network takes `image_size` alone.
        smallest_size: of images and local crops of which the backbone computes features, in pixels.
        starts_from_weights: whether `backbone.pretrained` is set.
        class_token, token_patch_size, learned_positions: facts about the backbone, as in `BackboneInfo`.
    """

    backbone: str
    features: int
    image_size: int
    patch_size: int | None
    train_images: int
    batch_size: int
    epochs: int
    crop_multiple: int | None = 1
    smallest_size: int = 1
    starts_from_weights: bool = False
    class_token: bool = False
    token_patch_size: int | None = None
    learned_positions: bool = False


class MethodConfig(SpecModel):
    """The settings that every method has."""

    recipe: ClassVar[Recipe] = Recipe()
    """What "auto" means with the recipe `small`."""
    authors: ClassVar[Authors | None] = None
    """What "auto" means with the recipe `authors`; None if no settings of theirs were found."""
    supervised: ClassVar[bool] = False
    """Whether the loss needs class labels; there is then one view of an image."""
    samples_per_class: ClassVar[int | None] = None
    """Images of each class in a batch of a supervised method."""
    needs_pairs: ClassVar[bool] = False
    """Whether the loss is 0 for a batch of one class, or without two images of any class."""
    has_prototypes: ClassVar[bool] = False
    """Whether the method assigns images to prototypes, which DAR can use as clusters."""
    compares_directions: ClassVar[bool] = True
    """Whether the loss compares embeddings by their angles, as SEC requires."""

    name: Any

    @property
    def settings_of_authors(self) -> Settings:
        """What "auto" means with the recipe `authors` and these settings."""
        return NOTHING if self.authors is None else self.authors.settings

    @property
    def num_views(self) -> int:
        """Views of each image, the local crops last."""
        return 1 if self.supervised else 2

    @property
    def has_single_view_pass(self) -> bool:
        """Whether some forward pass takes one view of an image alone."""
        return self.num_views == 1

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return what keeps the method from running with these settings in this job."""
        return []

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        """Return what "auto" means in the settings for which no recipe has a value."""
        return {}

    def resolve(self, context: ResolveContext) -> Any:
        """Return the same settings with every "auto" replaced, as the resolved form of their class."""
        return self.without_auto(RESOLVED_METHODS[self.name], self.automatic(context))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the settings of a method under their `name`, and after them their resolved form, if it differs."""
        name = cls.model_fields["name"].default
        if isinstance(name, str):
            METHODS.setdefault(name, cls)
            RESOLVED_METHODS[name] = cls


METHODS: dict[str, type[MethodConfig]] = {}
"""The settings of every method, by its name."""

RESOLVED_METHODS: dict[str, type[MethodConfig]] = {}
"""The resolved settings of every method; settings that cannot be "auto" are their own resolved form."""


class ProjectionHeadConfig(MethodConfig):
    """Settings of a method with a projection head."""

    projection_dim: Annotated[EmbeddingWidth, FIXES_SHAPES] = 128
    """Width of the embedding that the loss, DAR and SEC use."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the projection head's hidden layer. "auto": the width of the backbone's features."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        return super().automatic(context) | {"hidden_dim": context.features}


class TwoViewConfig(MethodConfig):
    """Settings of a method that compares two views of the same size."""

    separate_views: bool | Auto = "auto"
    """Each view goes through the networks on its own, so that batch normalization has the statistics of one
    view; false: both at once. "auto": false."""

    @property
    def has_single_view_pass(self) -> bool:
        """Whether each view has its own forward pass."""
        return self.separate_views is True


class ResolvedTwoViewConfig(SpecModel):
    """Two views that share forward passes or do not."""

    separate_views: bool = False


class DecorrelationConfig(TwoViewConfig):
    """Settings of a method whose loss compares and decorrelates coordinates, not directions: `sec` is refused."""

    # Barlow Twins' code for a batch of 2048 and 1000 epochs (facebookresearch/barlowtwins, main.py).
    recipe: ClassVar[Recipe] = BYOL_RECIPE._replace(weight_decay={"lars": 1e-6})
    compares_directions: ClassVar[bool] = False

    projection_dim: Annotated[EmbeddingWidth | Auto, FIXES_SHAPES] = "auto"
    """Width of the outputs of the projector, VICReg's expander, which the loss and DAR use. "auto": four times
    the width of the backbone's features, at most 8192, the paper's value for a ResNet-50."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the projector's two hidden layers. "auto": `projection_dim`."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        width = min(8192, 4 * context.features)
        output = width if self.projection_dim == "auto" else self.projection_dim
        return {"projection_dim": width, "hidden_dim": output}


class ResolvedDecorrelationConfig(ResolvedTwoViewConfig):
    """A projector of known widths."""

    projection_dim: EmbeddingWidth
    hidden_dim: Width


class MultiCropConfig(MethodConfig):
    """Settings of a method with small local crops besides its two global views (Caron et al. 2020)."""

    local_crops: int = Field(6, ge=0, le=98)
    """Number of local (small) crops of each image, in addition to the two global views."""
    local_size: CropSize | Auto = "auto"
    """Height and width of a local crop in pixels; for a ViT, a multiple of its patch size. "auto": 3/7 of
    `image_size` (96 of 224), for a ViT rounded to whole patches, at least 8 and what the network can compute."""
    local_scale: tuple[float, float] | Auto = "auto"
    """Smallest and largest fraction of the image area that a local crop keeps. "auto": 0.05 to 0.4."""

    @property
    def num_views(self) -> int:
        """Views of each image: two global ones, then the local crops."""
        return 2 + self.local_crops

    @property
    def has_single_view_pass(self) -> bool:
        """Whether there is a single local crop, as each image size has its own forward pass."""
        return self.local_crops == 1

    @field_validator("local_scale")
    @classmethod
    def _check_range(cls, scale: tuple[float, float] | Auto) -> tuple[float, float] | Auto:
        return scale if scale == "auto" else range_of_areas(scale)

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return a problem when the network does not take local crops of this size."""
        size, multiple, smallest = self.local_size, context.crop_multiple, context.smallest_size
        problems = Problems()
        if self.local_crops == 0:
            return problems
        if multiple is None:
            problems.add(
                "method.local_crops",
                f"must be 0 for {context.backbone}, which takes images of one size only",
                str(self.local_crops),
                "0, or a backbone that takes several sizes, such as a ResNet, ConvNeXt or ViT",
            )
        elif size != "auto" and size % multiple:
            problems.add(
                "method.local_size",
                f"must be divisible by {multiple} for {context.backbone}",
                str(size),
                f"such as {max(1, smallest // multiple, size // multiple) * multiple}",
            )
        elif size != "auto" and size < smallest:
            problems.add(
                "method.local_size",
                f"must be at least {smallest} for {context.backbone}, which cannot compute features of "
                "smaller images",
                str(size),
                f"{smallest} or larger",
            )
        return problems

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        unit = context.crop_multiple or 1
        side = max(1, round(context.image_size * 3 / 7 / unit)) * unit
        size = max(8, context.smallest_size, side)
        return super().automatic(context) | {"local_size": size}


class ResolvedMultiCropConfig(SpecModel):
    """Local crops of a known size."""

    local_size: CropSize
    local_scale: tuple[float, float]


class EMATeacherConfig(MethodConfig):
    """Settings of a method with an EMA teacher."""

    keep: Literal["student", "teacher"] = "student"
    """Which network's backbone is evaluated and exported."""


class MetricLearningConfig(MethodConfig):
    """Settings of a supervised method that compares the embeddings of one view of each image."""

    recipe: ClassVar[Recipe] = Recipe(
        # Proxy-Anchor's and SEC's papers: random crops and flips of the whole, and no color.
        lr={"adamw": 2e-4, "adam": 2e-4},  # Proxy-Anchor's 1e-4 for batches of 120 to 180
        weight_decay={"adamw": 1e-4},
        crop_scale=(0.16, 1.0),
        jitter=0.0,
        grayscale=0.0,
        blur=(0.0,),
        settings={"method.embedding_norm": False, "method.embedding_init": "uniform"},
    )
    supervised: ClassVar[bool] = True
    samples_per_class: ClassVar[int | None] = 4
    needs_pairs: ClassVar[bool] = True

    embedding_dim: Annotated[EmbeddingWidth, FIXES_SHAPES] = 512
    """Width of the embedding, a linear layer on the backbone's features."""
    embedding_norm: Annotated[bool | Auto, FIXES_SHAPES] = "auto"
    """Batch normalization of the features before the linear layer, as in SEC's code. "auto": false."""
    embedding_init: EmbeddingInit | Auto = "auto"
    """Initial weights of the linear layer. "uniform": torch's. "kaiming": normal, with a standard deviation
    for its number of outputs, and no bias, as in Proxy-Anchor's code. "auto": "uniform"."""


# Dyfine/SphericalEmbedding, config.py and learner.py, for CUB-200.
SEC_SETTINGS: Settings = {
    "method.embedding_norm": True,
    "augment.crop_scale": (0.16, 1.0),
    "backbone.freeze_batch_norm": "all",
    "train.optimizer.name": "adam",
    "train.optimizer.lr": 5e-6,
    "train.optimizer.head_lr": 2.0,
    "train.optimizer.step_decay": FallsAfterShares((0.625,), 0.1),
    "train.optimizer.weight_decay": 2.5e-3,
    "train.warmup_epochs": 0,
}


class ResolvedMetricLearningConfig(SpecModel):
    """The embedding layer of a supervised method."""

    embedding_norm: bool = False
    embedding_init: EmbeddingInit = "uniform"


def range_of_areas(scale: tuple[float, float]) -> tuple[float, float]:
    """Return `scale` if it is a range of shares of an image's area; else raise a validation error."""
    if not 0 < scale[0] <= scale[1] <= 1:
        raise problem("is not a range of areas", list(scale), "[low, high], 0 < low <= high <= 1")
    return scale
