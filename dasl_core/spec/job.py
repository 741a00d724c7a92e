"""JobSpec: all that a person says of a pretraining job, and its defaults."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.base import Auto, Part, problem
from dasl_core.spec.errors import LINE_PATTERN, NAME_PATTERN, closest
from dasl_core.spec.methods import METHODS, MethodSettings, SimCLR, range_of_areas

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN)]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=LINE_PATTERN)]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]
# Far above any rate, decay or weight that trains; beyond them float32 soon overflows, and a run would
# find it out only after its start.
LARGEST_RATE, LARGEST_DECAY, LARGEST_WEIGHT = 1e4, 100.0, 1e6
Weight = Annotated[float, Field(ge=0, le=LARGEST_WEIGHT)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_DECAY)]
Probability = Annotated[float, Field(ge=0, le=1)]
# fail_fast: report only the first invalid entry of what may be many.
PerView = Annotated[tuple[Probability, ...], Field(min_length=1, max_length=100, fail_fast=True)]
ImageSize = Annotated[int, Field(ge=8, le=1024)]
JitterStrength = Annotated[float, Field(ge=0, le=2)]
ClusterCount = Annotated[int, Field(ge=2, le=1_000_000)]
GlobalBatch = Annotated[int, Field(ge=2, le=1_000_000_000)]
WarmupEpochs = Annotated[float, Field(ge=0, le=100_000)]


class Backbone(Part):
    """The network that is pretrained: a timm ResNet or ViT, trained from random weights."""

    name: str = Field("resnet18", max_length=200, description="A timm ResNet-like or ViT model.")
    image_size: ImageSize | Auto = Field(
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
    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description=(
            "Weights to start from, as the workers see them: a checkpoint's folder of ours, or a file "
            "of timm weights (.safetensors, .pth, .bin). null: random weights."
        ),
    )
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="Stochastic depth: share of residual branches left out."
    )

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
    """Random views, drawn for each sample (Chen et al. 2020, appendix A; Grill et al. 2020, B).

    "auto" is what the method's paper prescribes.
    """

    crop_scale: tuple[float, float] | Auto = Field(
        "auto", description="Least and greatest share of the image's area that a crop keeps."
    )
    flip: float = Field(0.5, ge=0, le=1, description="Probability of a horizontal flip.")
    jitter: JitterStrength | Auto = Field(
        "auto",
        description='Strength of the colour jitter; 1 is SimCLR\'s for ImageNet. "auto": 0.5, or 0 '
        "for supervised methods.",
    )
    jitter_probability: float = Field(0.8, ge=0, le=1)
    grayscale: Probability | Auto = Field(
        "auto",
        description='Probability of dropping all colour; "auto": 0.2, or 0 for supervised methods.',
    )
    blur: Probability | PerView | Auto = Field(
        "auto",
        description=(
            "Probability of a Gaussian blur, for all views or one for each (the last one for all that "
            'follow); "auto": the method\'s from 65 pixels up, else 0.'
        ),
    )
    solarize: Probability | PerView | Auto = Field(
        "auto",
        description=(
            "Probability of inverting the pixels above one half, for all views or one for each; "
            '"auto": the method\'s from 65 pixels up, else 0.'
        ),
    )

    @field_validator("crop_scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float] | Auto) -> tuple[float, float] | Auto:
        return scale if scale == "auto" else range_of_areas(scale)


class Clusters(Part):
    """Where the labels of cluster-used DAR come from."""

    source: Literal["kmeans", "prototypes"] | Auto = Field(
        "auto",
        description=(
            '"kmeans": over a bank of the embeddings of the last epoch; "prototypes": the method\'s '
            'own (swav); "auto": prototypes where the method has them.'
        ),
    )
    k: ClusterCount | Auto = Field(
        "auto", description='Clusters of k-means; "auto": from the number of training images.'
    )
    metric: Literal["spherical", "euclidean"] = Field(
        "spherical", description="k-means by cosine, or by distance of raw embeddings."
    )
    every_epochs: PositiveInt = Field(
        1, description="How often k-means is run anew. Until its first, images are their own class."
    )


class DAR(Part):
    """Difference alignment regularization (Chen et al., ICLR 2024), added to the method's loss."""

    weight: Weight | Auto = Field(
        "auto",
        description=(
            'lambda; 0 leaves the run bit-identical to null; "auto": one that goes with the norm and the '
            "difference."
        ),
    )
    labels: Literal["instance", "cluster", "class"] = Field(
        "instance",
        description=(
            '"instance": cluster-free, the views of one image are never a pair; "cluster": '
            'cluster-used, nor are images of one cluster; "class": supervised.'
        ),
    )
    clusters: Clusters = Field(default_factory=Clusters, description='For labels: "cluster".')
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the weight grows from 0 over the training, if it does."
    )
    norm: Literal["l1", "l2", "sq_l2"] = Field("l1", description="G, the norm under the sum.")
    difference: Literal["abs", "signed", "distance"] = Field(
        "distance",
        description=(
            'What a pair is compared by: "abs": |a - b| of each coordinate; "signed": a - b; "distance": '
            "the Euclidean distance of the two, in which l1 and l2 are the same."
        ),
    )
    estimator: Literal["chain", "unbiased", "full"] = Field(
        "chain",
        description=(
            '"chain": neighbours in a random order of the batch (the paper\'s); "unbiased": the chain, '
            'reweighted; "full": all pairs, for batches of a few hundred views at most.'
        ),
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean", description='"mean" over pairs of columns; "sum" is the paper\'s literal form.'
    )
    normalize: bool = Field(
        True, description="L2-normalise embeddings first; false risks collapse."
    )

    @model_validator(mode="after")
    def _sum_has_a_weight(self) -> Self:
        if self.weight == "auto" and self.reduction == "sum":
            raise problem(
                "grows with the square of the batch under dar.reduction: sum, so that no default fits",
                self.weight,
                "a number",
                field="dar.weight",
            )
        return self


class SEC(Part):
    """Spherical embedding constraint (Zhang et al., NeurIPS 2020) on the raw embedding norms."""

    weight: Weight = Field(0.5, description="eta.")
    target: Literal["mean", "zero"] = "mean"
    momentum: float = Field(1.0, gt=0, le=1, description="rho; 1 uses the batch's own mean norm.")
    ramp: bool | Auto = Field(
        "auto",
        description=(
            'Grow the weight linearly from 0 over the training; "auto": as its authors do, with '
            "self-supervised methods and not with supervised ones."
        ),
    )


class Optimizer(Part):
    """How weights are updated."""

    name: Literal["adamw", "sgd", "lars"] | Auto = Field(
        "auto",
        description='"auto": AdamW for a ViT and for supervised methods from pretrained weights; else '
        "SGD up to batch 1024, then LARS.",
    )
    lr: Rate | Auto = Field(
        "auto",
        description='Peak rate for the global batch as it is; "auto": base_lr, scaled with the batch.',
    )
    base_lr: Rate | Auto = Field(
        "auto", description='Peak rate at a global batch of 256; "auto": the method\'s.'
    )
    lr_scaling: Literal["linear", "sqrt"] = Field(
        "linear", description="How base_lr grows with batch_size/256."
    )
    lr_end: float = Field(
        0.0, ge=0, lt=1, description="Where the cosine ends, as a share of the peak rate."
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="Factor on the rate from each block to the one before it."
    )
    weight_decay: Decay | Auto = Field(
        "auto", description='Of weights, never of biases and norms; "auto": the method\'s.'
    )
    weight_decay_end: Decay | Auto = Field(
        "auto", description='Where a cosine leads the decay; "auto": the method\'s, or no change.'
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Of SGD and LARS.")


class Clip(Part):
    """Clipping of gradients."""

    norm: float = Field(gt=0, le=1e9, description="Largest L2 norm.")
    each: bool = Field(False, description="Of each parameter by itself, as DINO; false: of all.")


class Train(Part):
    """The training run. `batch_size` is global: all ranks together."""

    epochs: int = Field(100, ge=1, le=100_000)
    batch_size: GlobalBatch | Auto = Field(
        "auto",
        description='Global; "auto": up to 256, at least 8 steps an epoch, divisible by ranks.',
    )
    micro_batches: PositiveInt = Field(
        1,
        description=(
            "Parts in which a rank computes its share, for batches beyond its memory. Gradients "
            "are those of the whole batch; batch statistics are those of a part."
        ),
    )
    samples_per_class: PositiveInt | Auto | None = Field(
        "auto",
        description=(
            'Images of each class in a batch; null: whatever comes; "auto": 4 for supervised methods '
            "(2 for npair), else null."
        ),
    )
    precision: Literal["fp32", "bf16", "fp16", "fp64"] | Auto = Field(
        "auto", description='"auto": bf16 autocast on GPUs, fp32 on CPUs; fp64 is for proofs.'
    )
    channels_last: bool | Auto = Field(
        "auto", description='Memory layout of images; "auto": true for a ResNet.'
    )
    compile: bool = Field(False, description="torch.compile the backbone.")
    checkpoint_activations: bool = Field(
        False, description="Compute each block again in the backward: less memory, a third slower."
    )
    deterministic: bool = Field(
        False, description="Only kernels whose result is the same in every run; slower on GPUs."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    clip: Clip | Auto | None = Field(
        "auto", description='Clipping of gradients; null: none; "auto": the method\'s.'
    )
    skip_not_finite: int = Field(
        10,
        ge=0,
        le=1000,
        description="So many steps in a row with NaN or infinite gradients are left out; then it fails.",
    )
    collapse: Literal["warn", "stop", "ignore"] = Field(
        "warn", description="What to do when the representation collapses: an event, or the end."
    )
    warmup_epochs: WarmupEpochs | Auto = Field(
        "auto",
        description='Linear warm-up, then cosine; "auto": a tenth of epochs, at most 10.',
    )
    checkpoint_every_epochs: PositiveInt | Auto = Field(
        "auto", description='"auto": a tenth of epochs. The last epoch is always saved.'
    )

    @model_validator(mode="after")
    def _warms_up_within(self) -> Self:
        if self.warmup_epochs != "auto" and self.warmup_epochs > self.epochs:
            raise problem(
                f"is longer than the training: train.epochs is {self.epochs}",
                self.warmup_epochs,
                f"at most {self.epochs}",
                field="train.warmup_epochs",
            )
        return self

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.compile and self.checkpoint_activations:
            raise problem(
                "does not go together with train.compile",
                True,
                "false, or train.compile: false",
                field="train.checkpoint_activations",
            )
        return self


class Knn(Part):
    """Weighted k-nearest-neighbour classification of held-out images (Wu et al. 2018)."""

    k: int = Field(20, ge=1, le=10_000)
    temperature: float = Field(0.07, ge=1e-3, le=1000)


class Holdout(Part):
    """Images kept out of training, to evaluate on. Drawn by a hash: the same in every run."""

    fraction: float = Field(0.1, gt=0, lt=1)
    by: Literal["image", "class"] = Field(
        "image", description='"class" holds out whole classes: retrieval is then zero-shot.'
    )


class LinearProbe(Part):
    """A linear classifier on frozen features, one for each learning rate, trained together."""

    epochs: int = Field(100, ge=1, le=10_000)
    batch_size: int = Field(256, ge=1, le=1_000_000)
    learning_rates: Annotated[
        tuple[Rate, ...], Field(min_length=1, max_length=100, fail_fast=True)
    ] = (
        0.01,
        0.03,
        0.1,
        0.3,
        1.0,
        3.0,
        10.0,
    )


class FineTune(Part):
    """Training of the whole network with labels, from the pretrained weights."""

    epochs: int = Field(10, ge=1, le=10_000)
    batch_size: int = Field(128, ge=2, le=1_000_000)
    lr: Rate = Field(0.001, description="Peak rate of AdamW.")


class Evaluate(Part):
    """What is measured on held-out images while training."""

    dataset: Name | None = Field(
        None, description="A data set to evaluate on; null: hold images of the training set out."
    )
    holdout: Holdout = Field(default_factory=Holdout)
    knn: Knn | None = Field(default_factory=Knn)
    linear: LinearProbe | bool = Field(
        False, description="A linear probe after the last epoch; true: with its defaults."
    )
    finetune: FineTune | bool = Field(
        False, description="Fine-tuning after the last epoch; true: with its defaults."
    )
    clustering: bool = Field(
        False, description="NMI and pairwise F1 of k-means with as many clusters as classes."
    )
    retrieval: tuple[PositiveInt, ...] = Field(
        (1, 5), max_length=100, fail_fast=True, description="The K of each R@K; [] for none."
    )
    every_epochs: PositiveInt | Auto = Field(
        "auto",
        description='"auto": a tenth of epochs. At the start and after the last epoch always.',
    )


class Checkpoints(Part):
    """Which checkpoints stay. The newest, the last of a training and pinned ones always do."""

    keep_last: PositiveInt | None = Field(
        None, description="How many of the newest; the others are deleted. null: all."
    )
    keep_best: int = Field(
        0,
        ge=0,
        le=1000,
        description="How many of the others stay: those with the best knn_top1, or else recall_at_1.",
    )


class Resources(Part):
    """What the job occupies. `workers` is the number of DDP ranks."""

    workers: int = Field(1, ge=1, le=4096)
    gpus_per_worker: Literal[0, 1] = Field(0, description="A DDP rank drives one GPU, or the CPU.")
    cpus_per_worker: int = Field(1, ge=1, le=1024)
    max_restarts: int = Field(3, ge=0, le=1000)
    max_hours: float = Field(24.0, gt=0, le=100_000)


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
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    resources: Resources = Field(default_factory=Resources)
    priority: int = Field(0, ge=-1000, le=1000, description="Higher starts first.")
    tags: dict[Tag, Tag] = Field(default_factory=dict, max_length=50)

    @field_validator("method", mode="before")
    @classmethod
    def _method_exists(cls, method: Any) -> Any:
        if not isinstance(method, dict):
            return method
        method = {"name": "simclr"} | method
        name = method["name"]
        if not isinstance(name, str) or name not in METHODS:
            raise problem(
                "is not a known method" + closest(str(name), METHODS),
                name,
                "one of " + ", ".join(METHODS),
                field="method.name",
            )
        return method

    @model_validator(mode="after")
    def _evaluates_on_others(self) -> Self:
        if self.evaluate.dataset == self.dataset:
            raise problem(
                "is what is trained on: each image would find itself",
                self.dataset,
                "another data set, or null, which holds images out",
                field="evaluate.dataset",
            )
        return self

    @model_validator(mode="after")
    def _has_the_prototypes(self) -> Self:
        dar = self.dar
        if (
            dar is not None
            and dar.labels == "cluster"
            and dar.clusters.source == "prototypes"
            and not self.method.has_prototypes
        ):
            raise problem(
                f"the method {self.method.name} has no prototypes",
                "prototypes",
                "'kmeans', or the method 'swav'",
                field="dar.clusters.source",
            )
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        check_batch_divides(self.train.batch_size, self.resources.workers, self.train.micro_batches)
        return self


def check_batch_divides(batch_size: int | str, workers: int, micro_batches: int) -> None:
    """Every rank takes the same share of a batch, in equal parts, or losses would be wrong."""
    parts = workers * micro_batches
    if isinstance(batch_size, int) and batch_size % parts:
        times = f" x train.micro_batches, which is {parts}" if micro_batches > 1 else ""
        which = times or f", which is {workers}"
        raise problem(
            f"is the global batch and must be divisible by resources.workers{which}",
            batch_size,
            f"a multiple of {parts}, such as {batch_size + parts - batch_size % parts}",
            field="train.batch_size",
        )
