"""ResolvedJobSpec: a job's settings without "auto" values, except in `resources`.

`resolve` returns it, the database and checkpoints store it, and training reads nothing else. Each class
narrows those fields of its base that may be "auto", and adds properties that need their values.

"auto" resources depend on the nodes at the start of an attempt; then they become `ResolvedResources`.
"""

from typing import Any, Literal

from dasl_core.spec.augment import Augment
from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import Stem
from dasl_core.spec.base import SpecModel
from dasl_core.spec.evaluate import Evaluate, FineTune, KMeans, LinearProbe
from dasl_core.spec.fields import (
    EIGHT_BIT,
    ChannelMeans,
    Channels,
    ChannelStds,
    CpuCount,
    CropShare,
    Decay,
    DropPath,
    Epochs,
    FrozenBatchNorm,
    GlobalBatch,
    ImageSize,
    Interpolation,
    JitterStrength,
    LayerDecay,
    PerView,
    PixelType,
    Pooling,
    PositiveInt,
    Probability,
    Rate,
    RateFactor,
    RateShare,
    Saturation,
    WarmupEpochs,
    WholeEpochs,
    Window,
)
from dasl_core.spec.job import JobSpec, Resources
from dasl_core.spec.methods import ResolvedMethodSettings
from dasl_core.spec.normalization import Normalization
from dasl_core.spec.recipes import RecipeName
from dasl_core.spec.regularizers import Regularizers, ResolvedDAR, ResolvedSEC
from dasl_core.spec.train import Clip, Optimizer, StepDecay, Train


class ResolvedBackbone(Backbone):
    """A backbone with its image size, stem, channels and normalization."""

    image_size: ImageSize
    stem: Stem
    in_channels: Channels = 3
    pixel_type: PixelType = "uint8"
    window: Window = EIGHT_BIT
    mean: ChannelMeans
    std: ChannelStds
    pooling: Pooling = "timm"
    freeze_batch_norm: FrozenBatchNorm = "none"
    drop_path: DropPath = 0.0

    @property
    def normalization(self) -> Normalization:
        """Normalization of all images."""
        return Normalization(mean=self.mean, std=self.std, window=self.window)


class ResolvedAugment(Augment):
    """Augmentations in which every probability and strength is a number."""

    crop_scale: tuple[float, float]
    interpolation: Interpolation
    jitter: JitterStrength
    saturation: Saturation
    grayscale: Probability
    blur: Probability | PerView
    solarize: Probability | PerView

    def for_view(self, view: int) -> "ViewAugment":
        """Return the augmentations of one view, counted from 0."""

        def pick(values: float | tuple[float, ...]) -> float:
            # Further views use the last value.
            return values[min(view, len(values) - 1)] if isinstance(values, tuple) else values

        return self.narrow(ViewAugment, blur=pick(self.blur), solarize=pick(self.solarize))


class ViewAugment(ResolvedAugment):
    """The augmentations of a single view: `blur` and `solarize` are one number each."""

    blur: Probability
    solarize: Probability


class ResolvedOptimizer(Optimizer):
    """An optimizer with its name, learning rates and weight decays."""

    name: Literal["adamw", "adam", "sgd", "lars"]
    lr: Rate
    base_lr: Rate
    lr_scaling: Literal["linear", "sqrt"]
    lr_end: RateShare
    step_decay: StepDecay | None
    head_lr: RateFactor
    layer_decay: LayerDecay
    weight_decay: Decay
    weight_decay_end: Decay


class ResolvedTrain(Train):
    """A training run with its batch, precision and schedule."""

    epochs: Epochs
    batch_size: GlobalBatch
    samples_per_class: PositiveInt | None
    precision: Literal["fp32", "bf16", "fp16", "fp64"]
    channels_last: bool
    optimizer: ResolvedOptimizer
    clip: Clip | None
    warmup_epochs: WarmupEpochs
    head_only_epochs: WholeEpochs
    checkpoint_every_epochs: PositiveInt
    image_cache: Literal["exact", "jpeg"]


class ResolvedEvaluate(Evaluate):
    """Evaluations with their interval, and the settings of k-means and the probes that are on."""

    on: Literal["backbone", "embedding"]
    crop_pct: CropShare
    clustering: KMeans | Literal[False]
    linear: LinearProbe | Literal[False]
    finetune: FineTune | Literal[False]
    every_epochs: PositiveInt


class ResolvedResources(Resources):
    """The resources of an attempt."""

    gpus_per_worker: Literal[0, 1]
    cpus_per_worker: CpuCount


class StepSettings(SpecModel):
    """The settings of a job that determine its steps, without "auto" values."""

    method: ResolvedMethodSettings
    backbone: ResolvedBackbone
    augment: ResolvedAugment
    dar: ResolvedDAR | None
    sec: ResolvedSEC | None
    regularizers: Regularizers
    train: ResolvedTrain

    def deciding(self) -> dict[str, Any]:
        """Return the settings that determine every step, JSON-ready."""
        parts = set(StepSettings.model_fields)
        # Early stopping determines the last step.
        return self.model_dump(mode="json", include=parts, exclude={"train": {"stop"}})


class ResolvedJobSpec(StepSettings, JobSpec):
    """A job without "auto" values, except in `resources`."""

    recipe: RecipeName
    evaluate: ResolvedEvaluate
