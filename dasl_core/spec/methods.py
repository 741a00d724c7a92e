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

from pydantic import Field, field_validator, model_validator

from dasl_core.spec.base import Auto, Part, problem

Width = Annotated[int, Field(ge=1, le=65_536)]
# Below it cosines become numbers that float32 does not hold.
Temperature = Annotated[float, Field(ge=1e-3, le=10)]
EmbeddingWidth = Annotated[int, Field(ge=2, le=65_536)]
CropSize = Annotated[int, Field(ge=8, le=1024)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Outputs = Annotated[int, Field(ge=2, le=1_000_000)]
QueueLength = Annotated[int, Field(ge=0, le=10_000_000)]
Epochs = Annotated[int, Field(ge=0, le=100_000)]
Margin = Annotated[float, Field(ge=1e-3, le=4)]


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
    needs_pairs: ClassVar[bool] = False
    """Whether the loss is 0 for a batch of one class, or without two images of any class."""
    has_prototypes: ClassVar[bool] = False
    """Whether the method assigns images to prototypes, which can stand for clusters."""

    name: Any

    @property
    def num_views(self) -> int:
        """Views of each image, the local crops last."""
        return 1 if self.supervised else 2

    def resolve(self, given: Given) -> "MethodPart":
        """Return the same settings with every "auto" replaced."""
        return self


class Projected(MethodPart):
    """A method with a projection head of its own width."""

    projection_dim: EmbeddingWidth = Field(
        128, description="Width of the embedding that the loss, DAR and SEC use."
    )
    hidden_dim: Width | Auto = Field(
        "auto",
        description=(
            "Width of the projection head's hidden layer. \"auto\": the width of the backbone's "
            "features."
        ),
    )

    def resolved_hidden_dim(self, given: Given) -> int:
        """Return the hidden layer's width: that of the features, where it is not set."""
        return given.features if self.hidden_dim == "auto" else self.hidden_dim


def range_of_areas(scale: tuple[float, float]) -> tuple[float, float]:
    """The same, if it is a range of shares of an image's area; else a validation error."""
    if not 0 < scale[0] <= scale[1] <= 1:
        raise problem("is not a range of areas", list(scale), "[low, high], 0 < low <= high <= 1")
    return scale


class MultiCrop(MethodPart):
    """A method with small local crops beside its two global views (Caron et al. 2020)."""

    local_crops: int = Field(
        6,
        ge=0,
        le=98,
        description=(
            "Number of local (small) crops of each image, in addition to the two global views."
        ),
    )
    local_size: CropSize | Auto = Field(
        "auto",
        description=(
            "Height and width of a local crop in pixels; for a ViT, a multiple of its patch "
            'size. "auto": 3/7 of `image_size` (96 of 224), for a ViT rounded to whole '
            "patches, at least 8."
        ),
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.4),
        description="Smallest and largest fraction of the image area that a local crop keeps.",
    )

    @property
    def num_views(self) -> int:
        """Two global views, then the local crops."""
        return 2 + self.local_crops

    @field_validator("local_scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float]) -> tuple[float, float]:
        return range_of_areas(scale)

    def resolved_local_size(self, given: Given) -> int:
        """Return the side of a local crop: whole patches, where it is not set."""
        if self.local_size != "auto":
            return self.local_size
        unit = given.patch_size or 1
        return max(8, max(1, round(given.image_size * 3 / 7 / unit)) * unit)


class ResolvedMultiCrop(MultiCrop):
    """A method with local crops of a known size."""

    local_size: CropSize


class SimCLR(Projected):
    """SimCLR (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709).

    Two views of an image attract each other and repel all other images.
    """

    name: Literal["simclr"] = "simclr"
    temperature: Temperature = Field(0.2, description="Divides the cosine similarities.")

    def resolve(self, given: Given) -> "ResolvedSimCLR":
        return self.narrow(ResolvedSimCLR, hidden_dim=self.resolved_hidden_dim(given))


class ResolvedSimCLR(SimCLR):
    """SimCLR's settings without "auto"."""

    hidden_dim: Width


class SwAV(MultiCrop, Projected):
    """SwAV (Caron et al., NeurIPS 2020, https://arxiv.org/abs/2006.09882).

    Predicts the prototypes that one global view of an image is assigned to from all other views; the
    images of a batch are assigned to the prototypes evenly. DAR and SEC act on the projections of the two
    global views before they are normalized. With `dar.labels: cluster`, the prototypes are the clusters.
    All ranks share one queue of earlier images, so that a run does not depend on their number.
    """

    recipe: ClassVar[Recipe] = Recipe(
        # The paper's rate, 0.6 at 256 for its large-batch optimizer, is LARS's; its decay is for all.
        lr={"lars": 0.6},
        weight_decay={"sgd": 1e-6, "lars": 1e-6},
        crop_scale=(0.14, 1.0),
    )
    has_prototypes: ClassVar[bool] = True

    name: Literal["swav"] = "swav"
    temperature: Temperature = Field(
        0.1, description="Divides the cosine similarities with the prototypes in the prediction."
    )
    prototypes: Outputs | Auto = Field(
        "auto",
        description=(
            'Number of prototypes. "auto": 2.5 times the square root of the number of '
            "training images: 2,830 for all 1,281,167 of ImageNet (2,685 with a tenth of them "
            "held out), where the paper has 3,000."
        ),
    )
    epsilon: float = Field(
        0.05,
        ge=0.03,
        le=1,
        description=(
            "Smoothness of the codes, the assignments that are predicted. Below 0.03, float32 "
            "would underflow."
        ),
    )
    sinkhorn_iterations: int = Field(
        3,
        ge=1,
        le=1000,
        description=(
            "Iterations of the Sinkhorn algorithm, which computes codes that use the "
            "prototypes evenly."
        ),
    )
    queue_length: QueueLength | Auto = Field(
        "auto",
        description=(
            "Number of earlier images, of all ranks together, that join the batch in "
            'computing codes. 0: none. "auto": whole batches, until queue and batch hold a '
            "third more images than there are prototypes; 0 if the batch alone does."
        ),
    )
    queue_start_epoch: Epochs | Auto = Field(
        "auto",
        description=(
            'Epochs before the queue is used; it is used once it is full. "auto": 7.5% of the '
            "epochs, at most 15, which is the paper's value for 200 epochs."
        ),
    )
    freeze_prototypes_epochs: int = Field(
        1,
        ge=0,
        le=100_000,
        description="Epochs in which the prototypes keep their initial weights.",
    )
    local_scale: tuple[float, float] = Field(
        (0.05, 0.14),
        description="Smallest and largest fraction of the image area that a local crop keeps.",
    )

    def resolve(self, given: Given) -> "ResolvedSwAV":
        """Sizes of crops and head; prototypes by the data set's size, the queue by theirs."""
        queue, start = self.queue_length, self.queue_start_epoch
        prototypes = (
            max(2, round(2.5 * given.train_images**0.5))
            if self.prototypes == "auto"
            else self.prototypes
        )
        if queue == "auto":
            missing = prototypes * 4 / 3 - given.batch_size
            queue = given.batch_size * max(0, math.ceil(missing / given.batch_size))
        if start == "auto":
            start = min(15, round(0.075 * given.epochs))
        return self.narrow(
            ResolvedSwAV,
            hidden_dim=self.resolved_hidden_dim(given),
            local_size=self.resolved_local_size(given),
            prototypes=prototypes,
            queue_length=queue,
            queue_start_epoch=start,
        )


class ResolvedSwAV(SwAV, ResolvedMultiCrop):
    """SwAV's settings without "auto"."""

    hidden_dim: Width
    local_size: CropSize
    prototypes: Outputs
    queue_length: QueueLength
    queue_start_epoch: Epochs


class WithTeacher(MethodPart):
    """A method whose targets come from a teacher: a moving average of the student."""

    keep: Literal["student", "teacher"] = Field(
        "student", description="Which network's backbone is evaluated and exported."
    )


class BYOL(WithTeacher):
    """BYOL (Grill et al., NeurIPS 2020, https://arxiv.org/abs/2006.07733).

    Predicts from one view of an image what an EMA teacher computes for the other view. DAR and SEC act on
    the predictions. Both views go through a network in one pass, so batch statistics are those of both
    views together; the authors' code computes them for each view separately.
    """

    recipe: ClassVar[Recipe] = Recipe(
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
        description=(
            'Width of the hidden layers of projector and predictor. "auto": twice the width '
            "of the backbone's features: 4096 for the paper's ResNet-50."
        ),
    )
    teacher_momentum: Momentum | Auto = Field(
        "auto",
        description=(
            "Momentum of the EMA teacher at the first step; it grows to 1 along a half "
            'cosine. "auto": 0.97 up to 40 epochs, 0.99 for 100 to 300, 0.996 from 1000, as '
            "the authors'; interpolated in between."
        ),
    )

    def resolve(self, given: Given) -> "ResolvedBYOL":
        """Heads as wide as the paper's beside its ResNet-50; a faster teacher for short trainings."""
        hidden, momentum = self.hidden_dim, self.teacher_momentum
        if hidden == "auto":
            hidden = min(65_536, 2 * given.features)
        if momentum == "auto":
            momentum = _interpolated(given.epochs, self._MOMENTA)
        return self.narrow(ResolvedBYOL, hidden_dim=hidden, teacher_momentum=momentum)


class ResolvedBYOL(BYOL):
    """BYOL's settings without "auto"."""

    hidden_dim: Width
    teacher_momentum: Momentum


class DINO(MultiCrop, WithTeacher):
    """DINO (Caron et al., ICCV 2021, https://arxiv.org/abs/2104.14294).

    A student that sees many crops of an image learns the output that its EMA teacher computes for the two
    global views. DAR and SEC act on the student's bottleneck for these two.
    """

    recipe: ClassVar[Recipe] = Recipe(
        # Beside AdamW, for ViTs, what the authors' code gives for a ResNet-50 and SGD.
        lr={"adamw": 5e-4, "sgd": 0.03},
        weight_decay={"adamw": (0.04, 0.4), "sgd": 1e-4},
        clip=3.0,
        clip_each=True,
        crop_scale=(0.4, 1.0),
        blur=(1.0, 0.1, 0.5),
        solarize=(0.0, 0.2, 0.0),
    )

    name: Literal["dino"] = "dino"
    local_crops: int = Field(
        8,
        ge=0,
        le=98,
        description=(
            "Number of local (small) crops of each image, in addition to the two global views."
        ),
    )
    bottleneck_dim: EmbeddingWidth = Field(
        256, description="Width of the head's bottleneck, which DAR and SEC use."
    )
    hidden_dim: Width | Auto = Field(
        "auto",
        description=(
            'Width of the head\'s hidden layers. "auto": 2048, at most 8 times the width of '
            "the backbone's features."
        ),
    )
    head_batch_norm: bool = Field(
        False,
        description=(
            "Batch normalization in the head's hidden layers; it helps a small ResNet with "
            "random weights."
        ),
    )
    out_dim: Outputs | Auto = Field(
        "auto",
        description=(
            'Number of outputs of the head. "auto": the largest power of two that is at most '
            "1/16 of the number of training images, from 1024 to 65,536, the paper's value "
            "for ImageNet."
        ),
    )
    student_temperature: Temperature = Field(
        0.1, description="Divides the student's outputs before the softmax."
    )
    teacher_temperature: Temperature | Auto = Field(
        "auto",
        description=(
            'Divides the teacher\'s outputs after its warm-up. "auto": 0.07; in a training of '
            "under 10,000 steps `teacher_temperature_start`, because targets that soften "
            "before there are features become uniform."
        ),
    )
    teacher_temperature_start: Temperature = Field(
        0.04, description="Divides the teacher's outputs in the first epoch."
    )
    teacher_temperature_epochs: Epochs | Auto = Field(
        "auto",
        description=(
            'Epochs in which the teacher\'s temperature grows linearly. "auto": 30% of the '
            "epochs, at most 30."
        ),
    )
    center_momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        description=(
            "Momentum of the moving mean of the teacher's outputs, which is subtracted from them."
        ),
    )
    teacher_momentum: Momentum | Auto = Field(
        "auto",
        description=(
            "Momentum of the EMA teacher at the first step; it grows to 1 along a half "
            'cosine. "auto": 0.996; in a training of under 10,000 steps 1 - 40/steps, but at '
            "least 0.97, so that the teacher leaves its random weights in time."
        ),
    )
    freeze_last_layer_epochs: int = Field(
        1,
        ge=0,
        le=100_000,
        description="Epochs in which the head's last layer keeps its initial weights.",
    )
    keep: Literal["student", "teacher"] = Field(
        "teacher", description="Which network's backbone is evaluated and exported."
    )

    def resolve(self, given: Given) -> "ResolvedDINO":
        """Sizes by the data set's; the teacher's schedules by the length of the training."""
        steps = given.epochs * max(1, given.train_images // given.batch_size)
        hidden, out = self.hidden_dim, self.out_dim
        if hidden == "auto":
            hidden = min(2048, 8 * given.features)
        if out == "auto":
            fitting = 2 ** (max(1, given.train_images // 16).bit_length() - 1)
            out = min(65_536, max(1024, fitting))
        temperature, warmup = self.teacher_temperature, self.teacher_temperature_epochs
        if temperature == "auto":
            # Targets that soften before the student has features become uniform and stay so; the
            # authors' code, too, starts at a constant 0.04 and calls more an option for long runs.
            temperature = 0.07 if steps >= 10_000 else self.teacher_temperature_start
        if warmup == "auto":
            warmup = min(30, round(0.3 * given.epochs))
        momentum = self.teacher_momentum
        if momentum == "auto":
            # The paper's 0.996 looks back over 250 steps of 10^5. A training of a few hundred steps
            # would end before its teacher had left the random weights.
            momentum = round(min(0.996, max(0.97, 1 - 40 / steps)), 4)
        return self.narrow(
            ResolvedDINO,
            local_size=self.resolved_local_size(given),
            hidden_dim=hidden,
            out_dim=out,
            teacher_temperature=temperature,
            teacher_temperature_epochs=warmup,
            teacher_momentum=momentum,
        )


class ResolvedDINO(DINO, ResolvedMultiCrop):
    """DINO's settings without "auto"."""

    local_size: CropSize
    hidden_dim: Width
    out_dim: Outputs
    teacher_temperature: Temperature
    teacher_temperature_epochs: Epochs
    teacher_momentum: Momentum


class MoCoV3(WithTeacher):
    """MoCo v3 (Chen, Xie and He, ICCV 2021, https://arxiv.org/abs/2104.02057).

    The query of one view must identify the key of the other view among the keys that a momentum encoder
    computes for the whole batch. DAR and SEC act on the queries.
    """

    recipe: ClassVar[Recipe] = Recipe(
        lr={"lars": 0.3, "adamw": 1.5e-4},
        weight_decay={"lars": 1.5e-6, "adamw": 0.1},
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
    )

    name: Literal["moco_v3"] = "moco_v3"
    temperature: Temperature = Field(0.2, description="Divides the cosine similarities.")
    projection_dim: EmbeddingWidth = Field(256, description="Width of queries and keys.")
    hidden_dim: Width | Auto = Field(
        "auto",
        description=(
            'Width of the hidden layers of projector and predictor. "auto": 4096, at most 12 '
            "times the width of the backbone's features."
        ),
    )
    freeze_patch_projection: bool = Field(
        True,
        description="Keep a ViT's first layer at its random weights, which stabilizes training.",
    )
    teacher_momentum: Momentum = Field(
        0.99,
        description=(
            "Momentum of the momentum encoder at the first step; it grows to 1 along a half cosine."
        ),
    )

    def resolve(self, given: Given) -> "ResolvedMoCoV3":
        """The paper's heads, smaller beside a small backbone."""
        hidden = self.hidden_dim
        if hidden == "auto":
            hidden = min(4096, 12 * given.features)
        return self.narrow(ResolvedMoCoV3, hidden_dim=hidden)


class ResolvedMoCoV3(MoCoV3):
    """MoCo v3's settings without "auto"."""

    hidden_dim: Width


class VICReg(MethodPart):
    """VICReg (Bardes, Ponce and LeCun, ICLR 2022, https://arxiv.org/abs/2105.04906).

    Pulls the views of an image together while each coordinate keeps its variance over the batch and
    coordinates are decorrelated.
    """

    recipe: ClassVar[Recipe] = Recipe(
        lr={"lars": 0.2},
        weight_decay={"lars": 1e-6},
        crop_scale=(0.08, 1.0),
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
    )

    name: Literal["vicreg"] = "vicreg"
    projection_dim: EmbeddingWidth | Auto = Field(
        "auto",
        description=(
            'Width of the expander\'s outputs, which the loss, DAR and SEC use. "auto": four '
            "times the width of the backbone's features, at most 8192, the paper's value for "
            "a ResNet-50."
        ),
    )
    hidden_dim: Width | Auto = Field(
        "auto",
        description='Width of the expander\'s two hidden layers. "auto": `projection_dim`.',
    )
    invariance: float = Field(
        25.0, ge=0, le=1e6, description="Weight of the distance between the views of an image."
    )
    variance: float = Field(
        25.0,
        ge=0,
        le=1e6,
        description="Weight of the hinge that keeps the standard deviation of each coordinate at 1.",
    )
    covariance: float = Field(
        1.0, ge=0, le=1e6, description="Weight of the squared covariances between coordinates."
    )

    @model_validator(mode="after")
    def _learns_something(self) -> Self:
        if not self.invariance + self.variance + self.covariance:
            raise problem(
                "is 0 like the other two weights, so that there is nothing to learn",
                self.invariance,
                "one weight above 0",
                field="method.invariance",
            )
        return self

    def resolve(self, given: Given) -> "ResolvedVICReg":
        """An expander four times as wide as the features."""
        width = min(8192, 4 * given.features)
        output = width if self.projection_dim == "auto" else self.projection_dim
        hidden = output if self.hidden_dim == "auto" else self.hidden_dim
        return self.narrow(ResolvedVICReg, projection_dim=output, hidden_dim=hidden)


class ResolvedVICReg(VICReg):
    """VICReg's settings without "auto"."""

    projection_dim: EmbeddingWidth
    hidden_dim: Width


def _interpolated(x: float, points: Sequence[tuple[float, float]]) -> float:
    """Linear between `points`, constant outside; to four digits, since people read it."""
    for (low, start), (high, end) in pairwise(points):
        if x < high:
            return round(start + (end - start) * max(0.0, x - low) / (high - low), 4)
    return points[-1][1]


class HCL(Projected):
    """HCL (Robinson et al., ICLR 2021, https://arxiv.org/abs/2010.04592).

    SimCLR with hard negatives: negatives get more weight the closer they are, corrected for those expected
    to have the anchor's class. With `tau_plus` and `beta` at 0 it is SimCLR's loss.
    """

    name: Literal["hcl"] = "hcl"
    temperature: float = Field(0.5, ge=0.02, le=10, description="Divides the cosine similarities.")
    tau_plus: float = Field(
        0.1,
        ge=0,
        lt=1,
        description=(
            "Probability that a negative has the anchor's class: about one divided by the "
            "number of classes. 0: no correction."
        ),
    )
    beta: float = Field(
        1.0,
        ge=0,
        le=100,
        description="How much more weight hard negatives get. 0: all have the same weight.",
    )

    def resolve(self, given: Given) -> "ResolvedHCL":
        return self.narrow(ResolvedHCL, hidden_dim=self.resolved_hidden_dim(given))


class ResolvedHCL(HCL):
    """HCL's settings without "auto"."""

    hidden_dim: Width


class MetricLearningPart(MethodPart):
    """A supervised method that compares the embeddings of one view of each image."""

    recipe: ClassVar[Recipe] = Recipe(
        # Proxy-Anchor's and SEC's papers: random crops and flips of the whole, and no colour.
        lr={"adamw": 2e-4},  # Proxy-Anchor's 1e-4 for batches of 120 to 180
        weight_decay={"adamw": 1e-4},
        crop_scale=(0.16, 1.0),
        jitter=0.0,
        grayscale=0.0,
        blur=(0.0,),
    )
    supervised: ClassVar[bool] = True
    samples_per_class: ClassVar[int | None] = 4
    needs_pairs: ClassVar[bool] = True

    embedding_dim: EmbeddingWidth = Field(
        512, description="Width of the embedding, a linear layer on the backbone's features."
    )


class NPair(MetricLearningPart):
    """N-pair (Sohn, NeurIPS 2016), normalized as in the SEC paper (https://arxiv.org/abs/2011.02785).

    One pair of images of each class; an anchor must identify its positive among those of all classes.
    Compares cosine similarities times a scale of 25. `normalize: false` is Sohn's own form, on dot
    products; the penalty on norms that he adds is `sec: {target: zero}`.
    """

    samples_per_class: ClassVar[int | None] = 2

    name: Literal["npair"] = "npair"
    normalize: bool = Field(
        True, description="true compares cosine similarities, false dot products of raw embeddings."
    )
    scale: float = Field(
        25.0,
        gt=0,
        le=1000,
        description="Multiplies the cosine similarities; raw embeddings are not scaled.",
    )


class ProxyAnchor(MetricLearningPart):
    """Proxy-Anchor (Kim et al., CVPR 2020, https://arxiv.org/abs/2003.13911).

    Each class has a proxy, a learned embedding, which is compared with all images of the batch.
    """

    # With the usual rate of SGD, a hundred times that is too much for proxies: R@1 fell below that of
    # the untrained network.
    recipe: ClassVar[Recipe] = MetricLearningPart.recipe._replace(lr={"adamw": 2e-4, "sgd": 0.01})
    needs_pairs: ClassVar[bool] = False

    name: Literal["proxy_anchor"] = "proxy_anchor"
    margin: float = Field(
        0.1,
        ge=0,
        lt=1,
        description=(
            "A positive is close enough if its cosine with the proxy is above the margin, a "
            "negative far enough if it is below minus the margin."
        ),
    )
    alpha: float = Field(32.0, gt=0, le=1000, description="How much more weight hard images get.")
    proxy_lr: float = Field(
        100.0, gt=0, le=10_000, description="Factor on the learning rate of the proxies."
    )


class Triplet(MetricLearningPart):
    """Triplet loss (Schroff et al., CVPR 2015, https://arxiv.org/abs/1503.03832).

    An image must be closer to its class than to others, by a margin on squared distances of normalized
    embeddings. The loss is the mean over the triplets that `mining` selects; a batch without any has a loss
    of 0.
    """

    name: Literal["triplet"] = "triplet"
    mining: Literal["all", "semihard"] = Field(
        "semihard",
        description=(
            '"semihard" selects triplets whose negative is farther than the positive but '
            'within the margin; "all" selects all triplets.'
        ),
    )
    margin: Margin | Auto = Field(
        "auto",
        description=(
            "Required difference between the squared distances to the negative and to the "
            'positive. "auto": 0.2 for semihard mining, 1.0 for all, as in the SEC paper\'s '
            "code."
        ),
    )

    def resolve(self, given: Given) -> "ResolvedTriplet":
        """The margin that goes with the mining."""
        margin = self.margin
        if margin == "auto":
            margin = 0.2 if self.mining == "semihard" else 1.0
        return self.narrow(ResolvedTriplet, margin=margin)


class ResolvedTriplet(Triplet):
    """The triplet loss's settings without "auto"."""

    margin: Margin


class MultiSimilarity(MetricLearningPart):
    """Multi-similarity (Wang et al., CVPR 2019, https://arxiv.org/abs/1904.06627).

    Pairs get more weight the harder they are, by themselves and relative to the other pairs of their
    anchor. Pairs that are much easier than the hardest opposite pair are dropped.
    """

    name: Literal["multi_similarity"] = "multi_similarity"
    alpha: float = Field(2.0, gt=0, le=1000, description="Sharpness of the weights of positives.")
    beta: float = Field(
        40.0,
        gt=0,
        le=1000,
        description="Sharpness of the weights of negatives; the value of the authors' code.",
    )
    base: float = Field(
        0.5,
        ge=-1,
        le=1,
        description=(
            "Cosine similarity below which positives, and above which negatives, get the most "
            "weight."
        ),
    )
    epsilon: float = Field(
        0.1,
        ge=0,
        le=2,
        description=(
            "Pairs that are easier than the hardest opposite pair by more than this are dropped."
        ),
    )


# Every method's settings stand in this union; `METHODS` finds them by their `name`.
ALL = (
    SimCLR,
    BYOL,
    DINO,
    MoCoV3,
    VICReg,
    SwAV,
    NPair,
    ProxyAnchor,
    Triplet,
    MultiSimilarity,
    HCL,
)
MethodSettings = Annotated[
    SimCLR
    | BYOL
    | DINO
    | MoCoV3
    | VICReg
    | SwAV
    | NPair
    | ProxyAnchor
    | Triplet
    | MultiSimilarity
    | HCL,
    Field(discriminator="name", description="The pretraining method, chosen by `name`."),
]

ResolvedMethodSettings = Annotated[
    ResolvedSimCLR
    | ResolvedBYOL
    | ResolvedDINO
    | ResolvedMoCoV3
    | ResolvedVICReg
    | ResolvedSwAV
    | NPair
    | ProxyAnchor
    | ResolvedTriplet
    | MultiSimilarity
    | ResolvedHCL,
    Field(discriminator="name"),
]

METHODS: dict[str, type[MethodPart]] = {
    settings.model_fields["name"].default: settings for settings in ALL
}
