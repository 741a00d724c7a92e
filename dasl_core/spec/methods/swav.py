"""Settings of SwAV."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    Epochs,
    MultiCropConfig,
    Outputs,
    ProjectionHeadConfig,
    Recipe,
    ResolveContext,
    ResolvedMultiCropConfig,
    Temperature,
    Width,
)
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByBatch

QueueLength = Annotated[int, Field(ge=0, le=10_000_000)]


class SwAV(MultiCropConfig, ProjectionHeadConfig):
    """SwAV (Caron et al., NeurIPS 2020, https://arxiv.org/abs/2006.09882).

    Predicts the prototype assignment of one global view of an image from all its other views; the images
    of a batch are assigned to the prototypes evenly. DAR and SEC act on the projections of the two
    global views before they are normalized. With `dar.labels: cluster`, the prototypes are the clusters.
    All ranks share one queue of earlier images, so that a run does not depend on their number.
    """

    recipe: ClassVar[Recipe] = Recipe(
        # The paper's rate, 0.6 at 256 for its large-batch optimizer, is LARS's; its decay is for all.
        lr={"lars": 0.6},
        weight_decay={"sgd": 1e-6, "lars": 1e-6},
        crop_scale=(0.14, 1.0),
        settings={"method.local_scale": (0.05, 0.14)},
    )
    # facebookresearch/swav, main_swav.py and scripts.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.hidden_dim": 2048,
            "method.prototypes": 3000,
            "method.queue_start_epoch": 15,
            "augment.jitter": 1.0,
            "train.optimizer.name": "lars",
            "train.optimizer.base_lr": ByBatch({256: 0.6, 4096: 0.3}),
            "train.optimizer.lr_end": 0.001,
            "train.warmup_epochs": ByBatch({256: 0, 4096: AtMostAllEpochs(10)}),
        },
    )
    has_prototypes: ClassVar[bool] = True

    name: Literal["swav"] = "swav"
    temperature: Temperature = 0.1
    """Divides the cosine similarities with the prototypes in the prediction."""
    prototypes: Annotated[Outputs | Auto, FIXES_SHAPES] = "auto"
    """Number of prototypes. "auto": 2.5 times the square root of the number of training images: 2,830 for all
    1,281,167 of ImageNet (2,685 with a tenth of them held out), where the paper has 3,000."""
    epsilon: float = Field(0.05, ge=0.03, le=1)
    """Smoothness of the codes, the assignments that are predicted. Below 0.03, float32 would underflow."""
    sinkhorn_iterations: int = Field(3, ge=1, le=1000)
    """Iterations of the Sinkhorn algorithm, which computes codes that use the prototypes evenly."""
    queue_length: Annotated[QueueLength | Auto, FIXES_SHAPES] = "auto"
    """Number of earlier images, of all ranks together, that join the batch in computing codes. 0: none.
    "auto": whole batches, until queue and batch hold a third more images than there are prototypes; 0 if the
    batch alone does."""
    queue_start_epoch: Epochs | Auto = "auto"
    """Epochs before the queue is used; it is used once it is full. "auto": 7.5% of the epochs, at most 15,
    which is the paper's value for 200 epochs."""
    freeze_prototypes_epochs: int = Field(1, ge=0, le=100_000)
    """Epochs in which the prototypes keep their initial weights."""
    local_scale: tuple[float, float] | Auto = "auto"
    """Smallest and largest fraction of the image area that a local crop keeps. "auto": 0.05 to 0.14."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        fitting = max(2, round(2.5 * context.train_images**0.5))
        prototypes = fitting if self.prototypes == "auto" else self.prototypes
        missing = prototypes * 4 / 3 - context.batch_size
        return super().automatic(context) | {
            "prototypes": fitting,
            "queue_length": context.batch_size * max(0, math.ceil(missing / context.batch_size)),
            "queue_start_epoch": min(15, round(0.075 * context.epochs)),
        }


class ResolvedSwAV(ResolvedMultiCropConfig, SwAV):
    """SwAV's settings without "auto"."""

    hidden_dim: Width
    prototypes: Outputs
    queue_length: QueueLength
    queue_start_epoch: Epochs
