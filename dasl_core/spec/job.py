"""JobSpec: all that a person says of a pretraining job, and its defaults."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.base import Auto, Part
from dasl_core.spec.errors import closest, shorten
from dasl_core.spec.methods import METHODS, MethodSettings, SimCLR

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f/\\]+$")
]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f]+$")]
PositiveInt = Annotated[int, Field(ge=1)]


def problem(message: str, given: Any, expected: str, field: str = "") -> PydanticCustomError:
    """A validation error that `field_problems` turns into the given sentence.

    `field` names the field where pydantic cannot: in a check that spans several parts.
    """
    return PydanticCustomError(
        "field_problem",
        "{message} (given {given}; expected {expected})",
        {"message": message, "given": shorten(given), "expected": expected, "field": field},
    )


class Backbone(Part):
    """The network that is pretrained: a timm ResNet or ViT, trained from random weights."""

    name: str = Field("resnet18", description="A timm ResNet-like or ViT model.")
    image_size: Annotated[int, Field(ge=8, le=1024)] | Auto = Field(
        "auto", description='Pixels a side; "auto": fits the data set\'s median image, at most 224.'
    )
    in_channels: Literal[1, 3] = Field(3, description="3 reads images as RGB, 1 as luminance.")
    stem: Literal["standard", "small"] | Auto = Field(
        "auto",
        description=(
            '"standard" is timm\'s own; "small" keeps the resolution of small images (ResNet: first '
            'convolution of stride 1 and no max-pooling; ViT: patches of an eighth of the side); "auto": '
            '"small" up to 64 pixels.'
        ),
    )
    pretrained: None = Field(None, description="Only null today: training starts at random.")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in BACKBONES:
            raise problem(
                "is not a backbone this version can train" + closest(name, BACKBONES),
                name,
                "a timm ResNet or VisionTransformer name, such as 'resnet50' or 'vit_small_patch16_224'",
            )
        return name


class Augment(Part):
    """Random views: SimCLR's recipe (Chen et al. 2020, appendix A), drawn for each sample."""

    crop_scale: tuple[float, float] = Field(
        (0.2, 1.0), description="Least and greatest share of the image's area that a crop keeps."
    )
    flip: float = Field(0.5, ge=0, le=1, description="Probability of a horizontal flip.")
    jitter: float = Field(
        0.5, ge=0, le=2, description="Strength of the colour jitter; 1 is SimCLR's for ImageNet."
    )
    jitter_probability: float = Field(0.8, ge=0, le=1)
    grayscale: float = Field(0.2, ge=0, le=1, description="Probability of dropping all colour.")
    blur: float | Auto = Field(
        "auto", description='Probability of a Gaussian blur; "auto": 0.5 from 65 pixels up, else 0.'
    )

    @field_validator("crop_scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1] <= 1:
            raise problem(
                "is not a range of areas", list(scale), "[low, high], 0 < low <= high <= 1"
            )
        return scale

    @field_validator("blur")
    @classmethod
    def _probability(cls, blur: float | Auto) -> float | Auto:
        if blur != "auto" and not 0 <= blur <= 1:
            raise problem("is not a probability", blur, '"auto" or a number from 0 to 1')
        return blur


class DAR(Part):
    """Difference alignment regularization (Chen et al., ICLR 2024), added to the method's loss."""

    weight: float = Field(
        0.003, ge=0, description="lambda; 0 leaves the run bit-identical to null."
    )
    labels: Literal["instance"] = Field(
        "instance", description='"instance": cluster-free, the views of one image are never a pair.'
    )
    norm: Literal["l1", "l2", "sq_l2"] = Field("l1", description="G, the norm under the sum.")
    difference: Literal["abs", "signed", "distance"] = Field(
        "abs",
        description="What a pair is compared by: |a - b| per dimension, a - b, or the distance.",
    )
    estimator: Literal["chain", "unbiased"] = "chain"
    reduction: Literal["mean", "sum"] = "mean"
    normalize: bool = Field(
        True, description="L2-normalise embeddings first; false risks collapse."
    )


class SEC(Part):
    """Spherical embedding constraint (Zhang et al., NeurIPS 2020) on the raw embedding norms."""

    weight: float = Field(0.5, ge=0, description="eta.")
    target: Literal["mean", "zero"] = "mean"
    momentum: float = Field(1.0, gt=0, le=1, description="rho; 1 uses the batch's own mean norm.")
    ramp: bool = Field(True, description="Grow the weight linearly from 0 over the training.")


class Optimizer(Part):
    """How weights are updated."""

    name: Literal["adamw", "sgd", "lars"] | Auto = Field(
        "auto", description='"auto": AdamW for a ViT, SGD for a ResNet up to batch 1024, else LARS.'
    )
    lr: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto",
        description='Peak rate for the global batch; "auto": the base rate x batch_size/256.',
    )
    weight_decay: Annotated[float, Field(ge=0)] | Auto = "auto"
    momentum: float = Field(0.9, ge=0, lt=1, description="Of SGD and LARS.")


class Train(Part):
    """The training run. `batch_size` is global: all ranks together."""

    epochs: int = Field(100, ge=1, le=100_000)
    batch_size: Annotated[int, Field(ge=2)] | Auto = Field(
        "auto",
        description='Global; "auto": up to 256, at least 8 steps an epoch, divisible by ranks.',
    )
    precision: Literal["fp32", "bf16", "fp64"] | Auto = Field(
        "auto", description='"auto": bf16 autocast on GPUs, fp32 on CPUs; fp64 is for proofs.'
    )
    seed: int = Field(0, ge=0, le=2**63 - 1)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    warmup_epochs: Annotated[float, Field(ge=0)] | Auto = Field(
        "auto",
        description='Linear warm-up, then cosine to 0; "auto": a tenth of epochs, at most 10.',
    )
    checkpoint_every_epochs: PositiveInt | Auto = Field(
        "auto", description='"auto": a tenth of epochs. The last epoch is always saved.'
    )


class Knn(Part):
    """Weighted k-nearest-neighbour classification of held-out images (Wu et al. 2018)."""

    k: int = Field(20, ge=1, le=10_000)
    temperature: float = Field(0.07, gt=0)


class Holdout(Part):
    """Images kept out of training, to evaluate on. Drawn by a hash: the same in every run."""

    fraction: float = Field(0.1, gt=0, lt=1)
    by: Literal["image", "class"] = Field(
        "image", description='"class" holds out whole classes: retrieval is then zero-shot.'
    )


class Evaluate(Part):
    """What is measured on held-out images while training."""

    dataset: str | None = Field(
        None, description="A data set to evaluate on; null: hold images of the training set out."
    )
    holdout: Holdout = Field(default_factory=Holdout)
    knn: Knn | None = Field(default_factory=Knn)
    linear: Literal[False] = Field(False, description="Only false today: no linear probe yet.")
    retrieval: tuple[PositiveInt, ...] = Field(
        (1, 5), description="The K of each R@K; [] for none."
    )
    every_epochs: PositiveInt | Auto = Field(
        "auto", description='"auto": a tenth of epochs. The untrained and the last epoch always.'
    )


class Resources(Part):
    """What the job occupies. `workers` is the number of DDP ranks."""

    workers: int = Field(1, ge=1, le=4096)
    gpus_per_worker: Literal[0, 1] = Field(0, description="A DDP rank drives one GPU, or the CPU.")
    cpus_per_worker: int = Field(1, ge=1, le=1024)
    max_restarts: int = Field(3, ge=0, le=1000)
    max_hours: float = Field(24.0, gt=0)


class JobSpec(Part):
    """A pretraining job. Unknown keys are refused; every error names its field."""

    name: Name = "pretraining"
    dataset: Name = Field(description="Id or name of a registered data set.")
    method: MethodSettings = Field(default_factory=SimCLR)
    backbone: Backbone = Field(default_factory=Backbone)
    augment: Augment = Field(default_factory=Augment)
    dar: DAR | None = None
    sec: SEC | None = None
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    resources: Resources = Field(default_factory=Resources)
    priority: int = Field(0, ge=-1000, le=1000, description="Higher starts first.")
    tags: dict[Tag, Tag] = Field(default_factory=dict, max_length=50)

    @field_validator("method", mode="before")
    @classmethod
    def _method_exists(cls, method: Any) -> Any:
        name = method.get("name") if isinstance(method, dict) else None
        if isinstance(name, str) and name not in METHODS:
            raise problem(
                "is not a known method" + closest(name, METHODS),
                name,
                "one of " + ", ".join(METHODS),
                field="method.name",
            )
        return method

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        check_batch_divides(self.train.batch_size, self.resources.workers)
        return self


def check_batch_divides(batch_size: int | str, workers: int) -> None:
    """Every rank takes the same share of a batch, or gathered losses would be wrong."""
    if isinstance(batch_size, int) and batch_size % workers:
        raise problem(
            f"is the global batch and must be divisible by resources.workers, which is {workers}",
            batch_size,
            f"a multiple of {workers}, such as {batch_size + workers - batch_size % workers}",
            field="train.batch_size",
        )
