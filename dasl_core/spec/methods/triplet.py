"""Settings of the triplet loss."""

from typing import Annotated, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    MetricLearningConfig,
    ResolveContext,
    register,
    register_resolved,
)
from dasl_core.spec.problems import FieldProblem

Margin = Annotated[float, Field(ge=1e-3, le=4)]
# Triplets of N images are found in a tensor of N^3 booleans: 1.1 GB.
LARGEST_BATCH = 1024


@register
class Triplet(MetricLearningConfig):
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
            'positive. "auto": 0.2 for "semihard", 1.0 for "all", as in the SEC paper\'s '
            "code."
        ),
    )

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return a problem when memory would not hold the triplets of a batch."""
        batch = context.batch_size
        if batch <= LARGEST_BATCH:
            return []
        return [
            FieldProblem(
                "train.batch_size",
                f"has {batch**3:.1e} triplets, which the method triplet holds in memory",
                str(batch),
                f"at most {LARGEST_BATCH:,}",
            )
        ]

    def resolve(self, context: ResolveContext) -> "ResolvedTriplet":
        """Choose the margin that goes with the mining."""
        margin = self.margin
        if margin == "auto":
            margin = 0.2 if self.mining == "semihard" else 1.0
        return self.narrow(ResolvedTriplet, margin=margin)


@register_resolved
class ResolvedTriplet(Triplet):
    """The triplet loss's settings without "auto"."""

    margin: Margin
