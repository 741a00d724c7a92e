"""Settings of the triplet loss."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    SEC_SETTINGS,
    MetricLearningConfig,
    ResolveContext,
    ResolvedMetricLearningConfig,
)
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.recipes import Authors, Settings

Margin = Annotated[float, Field(ge=1e-3, le=4)]
# All triplets of N images are found in a tensor of N^3 booleans: 1.1 GB.
LARGEST_BATCH = 1024


class Triplet(MetricLearningConfig):
    """Triplet loss (Schroff et al., CVPR 2015, https://arxiv.org/abs/1503.03832).

    An image must be closer to its class than to others, by a margin on squared distances of normalized
    embeddings. `mining` selects the triplets whose mean violation is the loss; a batch without any has a loss
    of 0.
    """

    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        from_weights=True,
        settings={
            **SEC_SETTINGS,
            "train.samples_per_class": 3,
        },
    )

    name: Literal["triplet"] = "triplet"
    mining: Literal["semihard", "all", "all_semihard"] = "semihard"
    """ "semihard" selects one negative for each anchor and positive, as TensorFlow and the SEC paper's code
    do: the nearest of those farther than the positive, or the farthest if there is none. "all" selects all
    triplets; "all_semihard" all whose negative is farther than the positive but within the margin, as the
    miner of pytorch-metric-learning does."""
    margin: Margin | Auto = "auto"
    """Required difference between the squared distances to the negative and to the positive. "auto": 0.2 for
    "semihard", 1.0 for "all", as in the SEC paper's code; 0.2 for "all_semihard"."""

    @property
    def settings_of_authors(self) -> Settings:
        """The authors' settings; their rate for all triplets is half that for semi-hard ones."""
        settings = super().settings_of_authors
        return {**settings, "train.optimizer.lr": 2.5e-6} if self.mining == "all" else settings

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return a problem when memory would not hold all triplets of a batch."""
        batch = context.batch_size
        if self.mining == "semihard" or batch <= LARGEST_BATCH:
            return []
        return [
            FieldProblem(
                "train.batch_size",
                f"has {batch**3:.1e} triplets, which mining: {self.mining} holds in memory",
                str(batch),
                f"at most {LARGEST_BATCH:,}, or method.mining: semihard",
            )
        ]

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        return {"margin": 1.0 if self.mining == "all" else 0.2}


class ResolvedTriplet(ResolvedMetricLearningConfig, Triplet):
    """The triplet loss's settings without "auto"."""

    margin: Margin
