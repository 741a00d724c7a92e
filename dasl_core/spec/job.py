"""JobSpec: all that a person says of a pretraining job, and its defaults."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.errors import LINE_PATTERN, NAME_PATTERN, closest
from dasl_core.spec.methods import METHODS, MethodSettings
from dasl_core.spec.methods.config import range_of_areas
from dasl_core.spec.methods.simclr import SimCLR

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


class Backbone(SpecModel):
    """The network that is pretrained: a timm ResNet or ViT."""

    name: str = Field(
        "resnet18",
        max_length=200,
        description=(
            "A timm ResNet-like or VisionTransformer model; `GET /v1/catalog/backbones` lists them."
        ),
    )
    image_size: ImageSize | Auto = Field(
        "auto",
        description=(
            'Height and width of the network\'s input, in pixels. "auto": the median of the '
            "images' shorter sides, rounded down to a multiple of 32, at least 32 and at most "
            "224; for a ViT, rounded down further to a multiple of its patch size."
        ),
    )
    in_channels: Literal[1, 3] = Field(3, description="3 reads all images as RGB, 1 as luminance.")
    stem: Literal["standard", "small"] | Auto = Field(
        "auto",
        description=(
            '"standard" is timm\'s own stem. "small" keeps the resolution of small images: the '
            "first convolution of a ResNet gets stride 1 and its max-pooling is removed; a "
            'ViT gets patches of an eighth of the image side. "auto": "small" up to an '
            '`image_size` of 64, else "standard".'
        ),
    )
    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description=(
            "Weights to start from: a path or file:// URI on the workers. Either the folder "
            "of a downloaded checkpoint of the same network, or a file of timm weights "
            "(.safetensors, .pth, .pt, .bin), which timm adapts to `in_channels` and to the "
            "image size of a ViT. null: random weights."
        ),
    )
    drop_path: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Stochastic depth: fraction of residual branches dropped in training.",
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


class Augment(SpecModel):
    """Random views, drawn for each sample (Chen et al. 2020, appendix A; Grill et al. 2020, B).

    "auto" is what the method's paper prescribes.
    """

    crop_scale: tuple[float, float] | Auto = Field(
        "auto",
        description=(
            "Smallest and largest fraction of the image area that a crop keeps; 0 < low <= "
            'high <= 1. "auto": the method\'s.'
        ),
    )
    flip: float = Field(0.5, ge=0, le=1, description="Probability of a horizontal flip.")
    jitter: JitterStrength | Auto = Field(
        "auto",
        description=(
            'Strength of the color jitter; 1 is SimCLR\'s value for ImageNet. "auto": 0.5; 0 '
            "for supervised methods."
        ),
    )
    jitter_probability: float = Field(
        0.8, ge=0, le=1, description="Probability that a view is jittered."
    )
    grayscale: Probability | Auto = Field(
        "auto",
        description='Probability of removing all color. "auto": 0.2; 0 for supervised methods.',
    )
    blur: Probability | PerView | Auto = Field(
        "auto",
        description=(
            "Probability of a Gaussian blur: one number, or a list with one for each view, "
            'whose last entry applies to all remaining views. "auto": the method\'s for an '
            "`image_size` above 64, else 0."
        ),
    )
    solarize: Probability | PerView | Auto = Field(
        "auto",
        description=(
            "Probability of inverting the pixels above one half; one number or a list, as for "
            '`blur`. "auto": the method\'s for an `image_size` above 64, else 0.'
        ),
    )

    @field_validator("crop_scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float] | Auto) -> tuple[float, float] | Auto:
        return scale if scale == "auto" else range_of_areas(scale)


class Clusters(SpecModel):
    """Where the labels of cluster-used DAR come from."""

    source: Literal["kmeans", "prototypes"] | Auto = Field(
        "auto",
        description=(
            'For `labels: cluster`. "kmeans" clusters the embeddings of the last epoch; '
            '"prototypes" uses the method\'s own prototypes (swav). "auto": "prototypes" for '
            'swav, else "kmeans".'
        ),
    )
    k: ClusterCount | Auto = Field(
        "auto",
        description=(
            'Number of k-means clusters. "auto": the square root of the number of training '
            "images, from 2 to 10,000; 2 if clusters are not used."
        ),
    )
    metric: Literal["spherical", "euclidean"] = Field(
        "spherical", description="k-means by cosine, or by Euclidean distance of raw embeddings."
    )
    every_epochs: PositiveInt = Field(
        1,
        description=(
            "Epochs between two runs of k-means; must be less than `train.epochs`. Until the "
            "first run, each image is its own cluster; so is later each image that was not "
            "part of the clustered epoch (the incomplete last batch)."
        ),
    )


class DAR(SpecModel):
    """Difference alignment regularization (Chen et al., ICLR 2024), added to the method's loss."""

    weight: Weight | Auto = Field(
        "auto",
        description=(
            "The factor lambda. 0 leaves the run bit-identical to one without DAR. "
            '`reduction: sum` requires a number. "auto": 0.5 for `difference: distance`; '
            "otherwise 0.003 for `norm: l1`, and 0.03 for `l2` and `sq_l2`."
        ),
    )
    labels: Literal["instance", "cluster", "class"] = Field(
        "instance",
        description=(
            'Which samples may form a pair: those of different images ("instance", the '
            'paper\'s cluster-free), of different clusters ("cluster", cluster-used), or of '
            'different classes of the data set ("class", supervised). Two views of one image '
            "never form a pair."
        ),
    )
    clusters: Clusters = Field(
        default_factory=Clusters, description="Settings for `labels: cluster`."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the weight grows from 0 over the training, unless constant."
    )
    norm: Literal["l1", "l2", "sq_l2"] = Field(
        "l1",
        description=(
            "G, the norm that measures how far two differences are apart. `sq_l2` is not a "
            "norm; it is there for ablations. `l2` of elementwise differences takes time "
            "quadratic in the batch."
        ),
    )
    difference: Literal["abs", "signed", "distance"] = Field(
        "distance",
        description=(
            'The difference of a pair: "abs" is the absolute difference of each coordinate, '
            '"signed" the signed one, "distance" the Euclidean distance, a single number, for '
            "which `l1` and `l2` are the same."
        ),
    )
    estimator: Literal["chain", "unbiased", "full"] = Field(
        "chain",
        description=(
            '"chain" takes consecutive pairs of a random order of the batch, as in the paper. '
            '"unbiased" reweights its column pairs, those that share a sample and those that '
            'do not, to their frequencies among all pairs of the batch. "full" takes all '
            "pairs, of at most 1,024 embeddings, or 128 with `norm: l2` and elementwise "
            "differences."
        ),
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description=(
            '"mean" divides by the number of column pairs, so that a weight has the same '
            'meaning at every batch size. "sum" is the literal form of the paper.'
        ),
    )
    normalize: bool = Field(
        True,
        description=(
            "L2-normalize embeddings first. Without it, shrinking all norms drives the term "
            "to 0, which risks collapse."
        ),
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


class SEC(SpecModel):
    """Spherical embedding constraint (Zhang et al., NeurIPS 2020) on the raw embedding norms."""

    weight: Weight = Field(
        0.5,
        description=(
            "The factor eta. The authors' contrastive loss has a factor temperature/0.07 that "
            "plain NT-Xent lacks: divide their eta by 7.14."
        ),
    )
    target: Literal["mean", "zero"] = Field(
        "mean",
        description=(
            "The norm that all norms are pulled to: their mean, or 0, which is plain L2 "
            "regularization."
        ),
    )
    momentum: float = Field(
        1.0,
        gt=0,
        le=1,
        description="rho, of the moving average of the mean norm. 1 uses the mean of the batch.",
    )
    ramp: bool | Auto = Field(
        "auto",
        description=(
            'Increase the weight linearly from 0 over the whole training. "auto": true for '
            "self-supervised methods, as its authors do, false for supervised ones."
        ),
    )


class Optimizer(SpecModel):
    """How weights are updated."""

    name: Literal["adamw", "sgd", "lars"] | Auto = Field(
        "auto",
        description=(
            "timm's implementations, without weight decay on biases and 1-D parameters. "
            '"auto": adamw for a ViT, and for supervised methods with `backbone.pretrained`; '
            "otherwise sgd up to a batch of 1024 and lars above."
        ),
    )
    lr: Rate | Auto = Field(
        "auto",
        description=(
            'Peak learning rate for the global batch. "auto": `base_lr` x `batch_size` / 256, '
            "or x its square root (`lr_scaling`)."
        ),
    )
    base_lr: Rate | Auto = Field(
        "auto",
        description=(
            'Peak learning rate at a global batch of 256; used if `lr` is "auto". "auto": '
            "0.12 (sgd), 0.3 (lars), 0.0005 (adamw), or the method's."
        ),
    )
    lr_scaling: Literal["linear", "sqrt"] = Field(
        "linear", description="How `base_lr` grows with `batch_size` / 256."
    )
    lr_end: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Final learning rate of the cosine schedule, as a fraction of the peak.",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Factor on the learning rate from each block of the backbone to the one before it."
        ),
    )
    weight_decay: Decay | Auto = Field(
        "auto",
        description=(
            'Weight decay; never applied to biases and norms. "auto": 0.0005 (sgd), 0.000001 '
            "(lars), 0.05 (adamw), or the method's."
        ),
    )
    weight_decay_end: Decay | Auto = Field(
        "auto",
        description=(
            'Final weight decay, reached along a half cosine. "auto": `weight_decay` if that '
            "is a number, else the method's, or no change."
        ),
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="Momentum of SGD and LARS; has no effect on AdamW."
    )


class Clip(SpecModel):
    """Clipping of gradients."""

    norm: float = Field(gt=0, le=1e9, description="Largest L2 norm of the gradient.")
    each: bool = Field(
        False,
        description="true clips each parameter separately, as DINO does; false clips all together.",
    )


class Train(SpecModel):
    """The training run. `batch_size` is global: all ranks together."""

    epochs: int = Field(100, ge=1, le=100_000, description="Passes over the training images.")
    batch_size: GlobalBatch | Auto = Field(
        "auto",
        description=(
            "Global batch: all ranks together; divisible by `resources.workers` x "
            '`micro_batches`. The incomplete last batch of an epoch is dropped. "auto": an '
            "eighth of the training images, for at least eight steps an epoch, but at most "
            "256, rounded down to a multiple of `resources.workers` x `micro_batches` and of "
            "`samples_per_class`; never less than two images, two for each micro-batch, or "
            "two classes of `samples_per_class` images."
        ),
    )
    micro_batches: PositiveInt = Field(
        1,
        description=(
            "Number of micro-batches in which a rank computes its share, for batches larger "
            "than its memory. Gradients are those of the whole batch: accumulated if the loss "
            "is a mean over samples (byol, and dino without regularizers), otherwise by "
            "gradient caching, which costs one more forward pass. Batch statistics are those "
            "of a micro-batch."
        ),
    )
    samples_per_class: PositiveInt | Auto | None = Field(
        "auto",
        description=(
            "Images of each class in a batch; needs classes. null: batches ignore classes. "
            '"auto": 4 for supervised methods (2 for npair), else null.'
        ),
    )
    precision: Literal["fp32", "bf16", "fp16", "fp64"] | Auto = Field(
        "auto",
        description=(
            "bf16 and fp16 are autocast with float32 weights, fp16 with a loss scale; fp64 is "
            'for proofs. "auto": bf16 on GPUs, fp32 on CPUs.'
        ),
    )
    channels_last: bool | Auto = Field(
        "auto",
        description=(
            'Channels-last memory layout of images and convolutions. "auto": true for a '
            "ResNet, else false."
        ),
    )
    compile: bool = Field(False, description="Compile the backbone with torch.compile.")
    checkpoint_activations: bool = Field(
        False,
        description=(
            "Recompute each block in the backward pass: less memory, about a third slower. "
            "Cannot be combined with `compile`."
        ),
    )
    deterministic: bool = Field(
        False,
        description=(
            "Use only kernels whose result is the same in every run; slower on GPUs. On CPUs, "
            "runs with the same number of threads are bit-identical without it."
        ),
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description=(
            "Determines initial weights, order of images, views and DAR's chains. It does not "
            "determine which images are held out."
        ),
    )
    optimizer: Optimizer = Field(default_factory=Optimizer)
    clip: Clip | Auto | None = Field(
        "auto", description='Gradient clipping. null: none. "auto": the method\'s, or none.'
    )
    skip_not_finite: int = Field(
        10,
        ge=0,
        le=1000,
        description=(
            "Skip up to this many consecutive steps whose gradients are NaN or infinite; one "
            "more fails the job. Each skipped step is reported as an event that names its "
            "images."
        ),
    )
    collapse: Literal["warn", "stop", "ignore"] = Field(
        "warn",
        description=(
            'When the representation collapses: "warn" reports an event that names the cause, '
            '"stop" also ends the job, "ignore" does nothing.'
        ),
    )
    warmup_epochs: WarmupEpochs | Auto = Field(
        "auto",
        description=(
            'Epochs of linear warm-up, at most `epochs`; a half cosine follows. "auto": a '
            "tenth of the epochs, at most 10."
        ),
    )
    checkpoint_every_epochs: PositiveInt | Auto = Field(
        "auto",
        description=(
            'Epochs between checkpoints; the last epoch is always saved. "auto": a tenth of '
            "the epochs, rounded, at least 1."
        ),
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


class Knn(SpecModel):
    """Weighted k-nearest-neighbour classification of held-out images (Wu et al. 2018)."""

    k: int = Field(20, ge=1, le=10_000, description="Number of neighbors that vote.")
    temperature: float = Field(
        0.07, ge=1e-3, le=1000, description="A vote has the weight exp(similarity / temperature)."
    )


class Holdout(SpecModel):
    """Images kept out of training, to evaluate on. Drawn by a hash: the same in every run."""

    fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Fraction of the images, or of the classes, that is kept out of training.",
    )
    by: Literal["image", "class"] = Field(
        "image",
        description=(
            '"class" holds out whole classes: retrieval is then zero-shot, and there is no '
            "k-NN accuracy, linear probe or fine-tuning."
        ),
    )


class LinearProbe(SpecModel):
    """A linear classifier on frozen features, one for each learning rate, trained together."""

    epochs: int = Field(100, ge=1, le=10_000, description="Epochs of training.")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Images in a batch.")
    learning_rates: Annotated[
        tuple[Rate, ...], Field(min_length=1, max_length=100, fail_fast=True)
    ] = Field(
        (
            0.01,
            0.03,
            0.1,
            0.3,
            1.0,
            3.0,
            10.0,
        ),
        description="Learning rates to try, one linear head each.",
    )


class FineTune(SpecModel):
    """Training of the whole network with labels, from the pretrained weights."""

    epochs: int = Field(10, ge=1, le=10_000, description="Epochs of training.")
    batch_size: int = Field(
        128,
        ge=2,
        le=1_000_000,
        description="Global batch: all ranks together; at least `resources.workers`.",
    )
    lr: Rate = Field(0.001, description="Peak learning rate of AdamW.")


class Evaluate(SpecModel):
    """What is measured on held-out images while training."""

    dataset: Name | None = Field(
        None,
        description=(
            "Another registered data set to evaluate on; must differ from `dataset`. null: "
            "hold out images of the training set."
        ),
    )
    holdout: Holdout = Field(default_factory=Holdout)
    knn: Knn | None = Field(
        default_factory=Knn, description="k-NN classification. null: off. Needs labels."
    )
    linear: LinearProbe | bool = Field(
        False,
        description=(
            "Linear probe after the last epoch: softmax regression on frozen features of all "
            "training images, with one head for each learning rate, trained together; a tenth "
            "of the training images selects the rate. true: with the defaults below. Needs "
            "labels."
        ),
    )
    finetune: FineTune | bool = Field(
        False,
        description=(
            "Fine-tuning after the last epoch: a copy of the network and a linear head, "
            "trained with AdamW on crops and flips. true: with the defaults below. Needs "
            "labels."
        ),
    )
    clustering: bool = Field(
        False,
        description=(
            "NMI and pairwise F1 of k-means with as many clusters as classes, on held-out "
            "images. Needs labels."
        ),
    )
    retrieval: tuple[PositiveInt, ...] = Field(
        (1, 5),
        max_length=100,
        fail_fast=True,
        description="The values of K for R@K; [] for none. Needs labels.",
    )
    every_epochs: PositiveInt | Auto = Field(
        "auto",
        description=(
            "Epochs between evaluations. Raw pixels (at most 32 a side, if there are labels) "
            "and the initial backbone are evaluated before the first step, and the backbone "
            'always after the last epoch. "auto": a tenth of the epochs, rounded, at least 1.'
        ),
    )


class Checkpoints(SpecModel):
    """Which checkpoints stay. The newest, the last of a training and pinned ones always do."""

    keep_last: PositiveInt | None = Field(
        None, description="How many of the newest checkpoints to keep. null: all."
    )
    keep_best: int = Field(
        0,
        ge=0,
        le=1000,
        description=(
            "How many of the others to keep: those with the best `knn_top1`, or `recall_at_1` "
            "if there is none."
        ),
    )


class Resources(SpecModel):
    """What the job occupies. `workers` is the number of DDP ranks."""

    workers: int = Field(1, ge=1, le=4096, description="Number of ranks.")
    gpus_per_worker: Literal[0, 1] = Field(
        0, description="A rank uses one GPU, or CPUs only. 0 trains on CPUs even if there are GPUs."
    )
    cpus_per_worker: int = Field(
        1,
        ge=1,
        le=1024,
        description=(
            "CPUs that a rank reserves; also its number of threads for torch and for decoding "
            "images."
        ),
    )
    max_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description=(
            "How often a job is retried after an attempt that failed or disappeared. "
            "Interruptions by a stop of the service do not count."
        ),
    )
    max_hours: float = Field(
        24.0,
        gt=0,
        le=100_000,
        description=(
            "Time limit for all attempts of the job together. Pauses, waiting, and silences "
            "of over two minutes do not count. A low limit lets a job start in gaps that a "
            "long job must leave free for a large one."
        ),
    )


class JobSpec(SpecModel):
    """A pretraining job. Unknown keys are refused; every error names its field."""

    name: Name = Field(
        "pretraining", description="A label for people; need not be unique. No slashes."
    )
    dataset: Name = Field(description="Id or name of a registered data set.")
    method: MethodSettings = Field(default_factory=SimCLR)
    backbone: Backbone = Field(default_factory=Backbone)
    augment: Augment = Field(default_factory=Augment)
    dar: DAR | None = Field(
        None, description="Difference alignment. null: off; {}: on, with the defaults below."
    )
    sec: SEC | None = Field(
        None,
        description="Spherical embedding constraint. null: off; {}: on, with the defaults below.",
    )
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    resources: Resources = Field(default_factory=Resources)
    priority: int = Field(
        0,
        ge=-1000,
        le=1000,
        description="Among waiting jobs, the one with the highest priority starts first.",
    )
    tags: dict[Tag, Tag] = Field(
        default_factory=dict,
        max_length=50,
        description=(
            "Labels for filters, such as `dasl jobs --tag team:vision`. Keys and values have "
            "1 to 63 characters."
        ),
    )

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
