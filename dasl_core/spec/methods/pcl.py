"""Settings of PCL."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    EMATeacherConfig,
    Epochs,
    Momentum,
    ProjectionHeadConfig,
    Recipe,
    ResolveContext,
    Temperature,
    Width,
)
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.recipes import Authors

Keys = Annotated[int, Field(ge=1, le=100_000_000)]
ClusteredKeys = Annotated[int, Field(ge=2, le=100_000_000)]
Clusters = Annotated[
    tuple[Annotated[int, Field(ge=2, le=1_000_000)], ...], Field(min_length=1, max_length=16)
]
# The authors' numbers of clusters for the images of ImageNet.
CLUSTERS, IMAGENET = (25_000, 50_000, 100_000), 1_281_167
LARGEST_QUEUE = 16_384


class PCL(ProjectionHeadConfig, EMATeacherConfig):
    """PCL (Li et al., ICLR 2021, https://arxiv.org/abs/2005.04966), version 2.

    The query of one view must identify the momentum encoder's key of the other view among keys of
    earlier batches and, after `warmup_epochs`, its image's cluster in several k-means of the last epoch's
    keys, each cluster with a temperature that follows its concentration. DAR and SEC act on the queries.
    Every rank holds the keys of all images: 656 MB for ImageNet, twice with the copy for skipped steps.
    """

    # The authors' code (salesforce/PCL, README.md and main_pcl.py); its views are the defaults here.
    recipe: ClassVar[Recipe] = Recipe(lr={"sgd": 0.03}, weight_decay={"sgd": 1e-4})

    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.teacher_momentum": 0.999,
            "train.optimizer.name": "sgd",
            "train.optimizer.lr": 0.03,
            "train.warmup_epochs": 0,
        },
    )

    name: Literal["pcl"] = "pcl"
    temperature: Temperature = 0.2
    """Divides the cosine similarities; of prototypes, the mean temperature."""
    queue_length: Annotated[Keys | Auto, FIXES_SHAPES] = "auto"
    """Number of earlier keys, of all ranks together, that serve as negatives. "auto": 16,384 as in the paper,
    but at most half as many as there are training images, so that few are of the same image."""
    bank_size: Annotated[ClusteredKeys | Auto, FIXES_SHAPES] = "auto"
    """Number of an epoch's first images whose keys are clustered. "auto": all in whole batches."""
    clusters: Annotated[Clusters | Auto, FIXES_SHAPES] = "auto"
    """Numbers of clusters of the k-means. "auto": three, in the paper's proportion to the training images:
    25,000, 50,000 and 100,000 for ImageNet."""
    warmup_epochs: Epochs | Auto = "auto"
    """Epochs before clusters are used; the first has none. "auto": a tenth of the epochs, as the paper's 20
    of 200."""
    teacher_momentum: Momentum | Auto = "auto"
    """Momentum of the momentum encoder, which is constant. "auto": 0.999, or 1 - 40/steps (at least 0.97) in
    a run of fewer than 40,000 steps, so that it leaves its random weights in time."""

    @property
    def has_single_view_pass(self) -> bool:
        """True: queries and keys are computed from one view each."""
        return True

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return a problem if there are more clusters than keys, or no epoch with clusters."""
        bank, problems = min(self._bank_size(context), _images_of_an_epoch(context)), Problems()
        if self.clusters != "auto" and max(self.clusters) > bank:
            problems.add(
                "method.clusters",
                f"are more than the {bank} images whose keys are clustered",
                str(list(self.clusters)),
                f"at most {bank} each",
            )
        warmup = self.warmup_epochs
        if warmup != "auto" and warmup >= context.epochs > 1:
            problems.add(
                "method.warmup_epochs",
                f"leaves no epoch with clusters: train.epochs is {context.epochs}",
                str(warmup),
                f"at most {context.epochs - 1}",
            )
        return problems

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        images, bank = context.train_images, self._bank_size(context)
        steps = context.epochs * max(1, images // context.batch_size)
        return super().automatic(context) | {
            "queue_length": min(LARGEST_QUEUE, max(1, images // 2)),
            "bank_size": bank,
            "clusters": tuple(min(bank, max(2, round(k * images / IMAGENET))) for k in CLUSTERS),
            "warmup_epochs": max(1, round(context.epochs / 10)),
            "teacher_momentum": round(min(0.999, max(0.97, 1 - 40 / steps)), 4),
        }

    def _bank_size(self, context: ResolveContext) -> int:
        return _images_of_an_epoch(context) if self.bank_size == "auto" else self.bank_size


def _images_of_an_epoch(context: ResolveContext) -> int:
    return max(1, context.train_images // context.batch_size) * context.batch_size


class ResolvedPCL(PCL):
    """PCL's settings without "auto"."""

    hidden_dim: Width
    queue_length: Keys
    bank_size: ClusteredKeys
    clusters: Clusters
    warmup_epochs: Epochs
    teacher_momentum: Momentum
