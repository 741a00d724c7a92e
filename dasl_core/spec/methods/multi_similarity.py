"""Settings of multi-similarity."""

from typing import ClassVar, Literal

from pydantic import Field

from dasl_core.spec.methods.config import (
    SEC_SETTINGS,
    MetricLearningConfig,
    ResolvedMetricLearningConfig,
)
from dasl_core.spec.recipes import Authors, FallsAfterShares


class MultiSimilarity(MetricLearningConfig):
    """Multi-similarity (Wang et al., CVPR 2019, https://arxiv.org/abs/1904.06627).

    Pairs get more weight the harder they are, by themselves and relative to the other pairs of their
    anchor. Pairs that are much easier than the hardest opposite pair are dropped.
    """

    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        from_weights=True,
        settings={
            **SEC_SETTINGS,
            "train.samples_per_class": 5,
            "train.optimizer.step_decay": FallsAfterShares((0.375, 0.75), 0.1),
        },
    )

    name: Literal["multi_similarity"] = "multi_similarity"
    alpha: float = Field(2.0, gt=0, le=1000)
    """Sharpness of the weights of positives."""
    beta: float = Field(40.0, gt=0, le=1000)
    """Sharpness of the weights of negatives; the value of the authors' code."""
    base: float = Field(0.5, ge=-1, le=1)
    """Cosine similarity below which positives, and above which negatives, get the most weight."""
    epsilon: float = Field(0.1, ge=0, le=2)
    """Pairs that are easier than the hardest opposite pair by more than this are dropped."""


class ResolvedMultiSimilarity(ResolvedMetricLearningConfig, MultiSimilarity):
    """The settings of the multi-similarity loss without "auto"."""
