"""ResolvedJobSpec: a job's settings once every "auto" is a number or a name.

`resolve` makes it, the database and the checkpoints keep it, and training reads nothing else. Each
class narrows those fields of its base that may be "auto", and adds what is known only without them.
"""

from typing import Literal

from dasl_core.spec.augment import Augment
from dasl_core.spec.backbone import Backbone
from dasl_core.spec.evaluate import Evaluate, FineTune, LinearProbe
from dasl_core.spec.fields import (
    ClusterCount,
    Decay,
    GlobalBatch,
    ImageSize,
    JitterStrength,
    PerView,
    PositiveInt,
    Probability,
    Rate,
    WarmupEpochs,
    Weight,
)
from dasl_core.spec.job import JobSpec
from dasl_core.spec.methods import ResolvedMethodSettings
from dasl_core.spec.regularizers import DAR, SEC, Clusters
from dasl_core.spec.train import Clip, Optimizer, Train


class ResolvedBackbone(Backbone):
    """A backbone whose image size and stem are settled."""

    image_size: ImageSize
    stem: Literal["standard", "small"]


class ResolvedAugment(Augment):
    """Augmentations with every probability and strength a number."""

    crop_scale: tuple[float, float]
    jitter: JitterStrength
    grayscale: Probability
    blur: Probability | PerView
    solarize: Probability | PerView

    def of_view(self, view: int) -> "ViewAugment":
        """The augmentations of one view, counted from 0."""

        def of_this(values: float | tuple[float, ...]) -> float:
            return values[min(view, len(values) - 1)] if isinstance(values, tuple) else values

        return self.narrow(ViewAugment, blur=of_this(self.blur), solarize=of_this(self.solarize))


class ViewAugment(ResolvedAugment):
    """The augmentations of a single view: `blur` and `solarize` are one number each."""

    blur: Probability
    solarize: Probability


class ResolvedClusters(Clusters):
    """Pseudo-label clusters with a known source and number."""

    source: Literal["kmeans", "prototypes"]
    k: ClusterCount


class ResolvedDAR(DAR):
    """DAR with its weight and clusters settled."""

    weight: Weight
    clusters: ResolvedClusters

    @property
    def active(self) -> bool:
        """Whether DAR adds anything to the loss."""
        return self.weight > 0


class ResolvedSEC(SEC):
    """SEC with its ramp settled."""

    ramp: bool


class ResolvedOptimizer(Optimizer):
    """An optimizer with its name, rates and decays settled."""

    name: Literal["adamw", "sgd", "lars"]
    lr: Rate
    base_lr: Rate
    weight_decay: Decay
    weight_decay_end: Decay


class ResolvedTrain(Train):
    """A training run with its batch, precision and schedule settled."""

    batch_size: GlobalBatch
    samples_per_class: PositiveInt | None
    precision: Literal["fp32", "bf16", "fp16", "fp64"]
    channels_last: bool
    optimizer: ResolvedOptimizer
    clip: Clip | None
    warmup_epochs: WarmupEpochs
    checkpoint_every_epochs: PositiveInt


class ResolvedEvaluate(Evaluate):
    """An evaluation whose interval is settled and whose probes are written out."""

    linear: LinearProbe | Literal[False]
    finetune: FineTune | Literal[False]
    every_epochs: PositiveInt


class ResolvedJobSpec(JobSpec):
    """A job in which no "auto" is left: what runs."""

    method: ResolvedMethodSettings
    backbone: ResolvedBackbone
    augment: ResolvedAugment
    dar: ResolvedDAR | None
    sec: ResolvedSEC | None
    train: ResolvedTrain
    evaluate: ResolvedEvaluate
