"""Settings of the training run and its optimizer."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.fields import (
    Decay,
    Epochs,
    GlobalBatch,
    LayerDecay,
    MetricName,
    PositiveEpochs,
    PositiveInt,
    Rate,
    RateFactor,
    RateShare,
    WarmupEpochs,
    WholeEpochs,
)


class StepDecay(SpecModel):
    """A learning rate that falls in steps."""

    epochs: (
        PositiveEpochs
        | Annotated[tuple[PositiveEpochs, ...], Field(min_length=1, max_length=100, fail_fast=True)]
    )
    """After which epochs the learning rate falls: a number for each multiple of it, or an increasing list.
    Fractions are rounded to whole steps."""
    factor: float = Field(gt=0, lt=1)
    """Factor on the learning rate at each fall."""


class Optimizer(SpecModel):
    """The optimizer, and the schedules of its learning rate and weight decay."""

    name: Literal["adamw", "adam", "sgd", "lars"] | Auto = "auto"
    """timm's implementations, without weight decay on biases and 1-D parameters; adam adds the decay to the
    gradient, adamw takes it from the weight. "auto": adamw for a ViT, and for supervised methods with
    `backbone.pretrained`; otherwise sgd up to a batch of 1024 and lars above."""
    lr: Rate | Auto = "auto"
    """Peak learning rate for the global batch. "auto": `base_lr` x `batch_size` / 256, or x its square root
    (`lr_scaling`)."""
    base_lr: Rate | Auto = "auto"
    """Peak learning rate at a global batch of 256; used if `lr` is "auto". "auto": 0.12 (sgd), 0.3 (lars),
    0.0005 (adamw and adam), or the method's."""
    lr_scaling: Literal["linear", "sqrt"] | Auto = "auto"
    """How `base_lr` grows with `batch_size` / 256. "auto": "linear", or the recipe's."""
    lr_end: RateShare | Auto = "auto"
    """Final learning rate of the cosine schedule, as a fraction of the peak; 1 keeps the rate. "auto": 0."""
    step_decay: StepDecay | Auto | None = "auto"
    """Let the learning rate fall in steps. null: along a half cosine to `lr_end`. "auto": null."""
    head_lr: RateFactor | Auto = "auto"
    """Factor on the learning rate of all weights outside the backbone, except those to which the method gives
    a factor of its own, such as `method.proxy_lr`. "auto": 1."""
    layer_decay: LayerDecay | Auto = "auto"
    """Factor on the learning rate from each block of the backbone to the one before it. "auto": 1."""
    weight_decay: Decay | Auto = "auto"
    """Weight decay; never applied to biases and norms. "auto": 0.0005 (sgd), 0.000001 (lars), 0.05 (adamw),
    0.0001 (adam), or the method's."""
    weight_decay_end: Decay | Auto = "auto"
    """Final weight decay, reached along a half cosine. "auto": `weight_decay` if that is a number, else the
    method's, or no change."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD and LARS; has no effect on AdamW and Adam."""
    larc: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rate of a weight by LARS, relative to the norm of the weight over that of its gradient, but at most `lr`: LARS
    with clipping, as in solo-learn, which takes 0.02. null: 0.001 x `lr`, without that limit."""


class Clip(SpecModel):
    """Clipping of gradients, by `norm` or by `value`."""

    norm: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Largest L2 norm of the gradient."""
    value: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Largest absolute value of an entry of the gradient, in place of `norm`."""
    each: bool = False
    """true clips each parameter separately, as DINO does; false clips all together."""

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if (self.norm is None) == (self.value is None):
            limits = {"norm": self.norm, "value": self.value}
            raise problem("needs one of norm and value", limits, "such as {norm: 1.0}")
        if self.value is not None and self.each:
            raise problem(
                "has no effect with train.clip.value",
                True,
                "false, or train.clip.norm",
                field="train.clip.each",
            )
        return self


class Stop(SpecModel):
    """Early stopping by a metric of the evaluations during training."""

    metric: MetricName
    """One that each evaluation measures and that has a better direction: `knn_top1`, `recall_at_K` with a K
    of `evaluate.retrieval`, `nmi`, `pairwise_f1`, `pairwise_precision`, `pairwise_recall`,
    `verification_accuracy`, `instance_recall_at_1`, `effective_rank`, `dimension_std`, or `uniformity`, which
    must fall. It is that of what `evaluate.on` names."""
    patience: int = Field(5, ge=1, le=100_000)
    """The training ends after this number of evaluations in a row without a new best one; fewer than there
    are before the last epoch."""
    min_delta: float = Field(0.0, ge=0, le=1e9)
    """A new best one must be better by more than this."""


class Train(SpecModel):
    """The training run. `batch_size` is global: all ranks together."""

    epochs: Epochs | Auto = "auto"
    """Passes over the training images. "auto": a fifth of the number of training images, at least 10 and at
    most 100; 100 with the recipe `authors`."""
    batch_size: GlobalBatch | Auto = "auto"
    """Global batch: all ranks together; divisible by `resources.workers` x `micro_batches`. The incomplete
    last batch of an epoch is dropped. "auto": an eighth of the training images, for at least eight steps an
    epoch, but at most 256, and at least 32 or half of the images; rounded down to a multiple of `resources.workers` x `micro_batches` and of
    `samples_per_class`, and of 8 where that leaves any; never less than two images, two for each micro-batch,
    or two classes of `samples_per_class` images."""
    micro_batches: PositiveInt = 1
    """Number of micro-batches in which a rank computes its share, for batches larger than its memory.
    Gradients are those of the whole batch: accumulated if the loss is a mean over samples (byol, dino, pcl
    and margin_softmax, without regularizers), otherwise by gradient caching, which costs one more forward
    pass. Batch statistics are those of a micro-batch."""
    samples_per_class: PositiveInt | Auto | None = "auto"
    """Images of each class in a batch; needs classes. null: batches ignore classes. "auto": 4 for supervised
    methods (2 for npair), else null."""
    precision: Literal["fp32", "bf16", "fp16", "fp64"] | Auto = "auto"
    """bf16 and fp16 are autocast with float32 weights, fp16 with a loss scale; fp64 is for numerical tests.
    "auto": bf16 on GPUs, fp32 on CPUs; in a clone, that of its checkpoint."""
    channels_last: bool | Auto = "auto"
    """Channels-last memory layout of images and convolutions. "auto": true for a ResNet, else false."""
    compile: bool = False
    """Compile the backbone with torch.compile."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass: less memory, about a third slower. Cannot be combined with
    `compile`."""
    sync_batch_norm: bool = True
    """Batch normalization over the global batch, so that gradients do not depend on the number of ranks. false: over
    each rank's share, which is faster on several GPUs; the running statistics are then means over ranks. Without an
    effect on one rank."""
    sharding: Literal["none", "fsdp"] = "none"
    """ "fsdp" divides weights, gradients and optimizer state among the ranks (FSDP2), for a ViT-L and larger; "none"
    keeps all of them on each rank (DDP). fsdp is for byol, dino, ibot and simclr with a Vision Transformer of timm's
    families vit and eva, and not for lars, `compile` or `channels_last`. Without an effect on one rank."""
    deterministic: bool = False
    """Use only kernels whose result is the same in every run; slower on GPUs. On CPUs, runs with the same
    number of threads are bit-identical without it."""
    seed: int = Field(0, ge=0, le=2**63 - 1)
    """Determines initial weights, order of images, views and DAR's chains. It does not determine which images
    are held out."""
    cut_init: float | None = Field(None, gt=1, le=1000)
    """Divide the random initial weights of all linear and convolutional layers by this number, so that
    embeddings start short and turn faster (cut-initialization, arXiv 2502.09252, which takes 3 for
    contrastive methods and 9 for others). Prototypes keep their unit length. Without BatchNorm between them,
    n layers shorten the embedding by this number to the power of n. The baseline `untrained` is the network
    after the division. Not with `backbone.pretrained`. null: no."""
    optimizer: Optimizer = Field(default_factory=Optimizer)
    clip: Clip | Auto | None = "auto"
    """Gradient clipping. null: none. "auto": the method's, or none."""
    skip_not_finite: int = Field(10, ge=0, le=1000)
    """Skip up to this many consecutive steps whose gradients are NaN or infinite; one more fails the job.
    Each skipped step is reported as an event that names its images."""
    collapse: Literal["warn", "stop", "ignore"] = "warn"
    """When the representation collapses: "warn" reports an event that names the cause, "stop" also ends the
    job, "ignore" does nothing."""
    stop: Stop | None = None
    """Early stopping. The learning rate keeps its schedule over `epochs`. null: train for all epochs."""
    warmup_epochs: WarmupEpochs | Auto = "auto"
    """Epochs of linear warm-up, at most `epochs`; a half cosine or `step_decay` follows. "auto": a tenth of
    the epochs, at most 10."""
    head_only_epochs: WholeEpochs | Auto = "auto"
    """Epochs at the start in which only the heads learn: the backbone is frozen in eval mode, and an EMA
    teacher's with it. For pretrained weights, which random heads would spoil. "auto": 0."""
    checkpoint_every_epochs: PositiveInt | Auto = "auto"
    """Epochs between checkpoints; the last epoch is always saved. "auto": a tenth of the epochs, rounded up."""
    image_cache: Literal["exact", "jpeg"] | Auto = "auto"
    """The values of decoded images: "exact", or "jpeg" as JPEG of quality 95 keeps them, which takes a
    seventh of the raw size; for 8-bit images and 1 or 3 `in_channels`. "auto": "jpeg" if the raw values may
    take more than 10 GiB, else "exact"."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        warmup, epochs = self.warmup_epochs, self.epochs
        if warmup != "auto" and epochs != "auto" and warmup > epochs:
            raise problem(
                f"is longer than the training: train.epochs is {epochs}",
                warmup,
                f"at most {epochs}",
                field="train.warmup_epochs",
            )
        if self.compile and self.checkpoint_activations:
            raise problem(
                "cannot be combined with train.compile",
                True,
                "false, or train.compile: false",
                field="train.checkpoint_activations",
            )
        return self
