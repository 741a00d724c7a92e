"""Settings of N-pair."""

from typing import ClassVar, Literal

from pydantic import Field

from dasl_core.spec.methods.config import (
    SEC_SETTINGS,
    MetricLearningConfig,
    ResolvedMetricLearningConfig,
)
from dasl_core.spec.recipes import Authors


class NPair(MetricLearningConfig):
    """N-pair (Sohn, NeurIPS 2016), normalized as in the SEC paper (https://arxiv.org/abs/2011.02785).

    One pair of images of each class; an anchor must identify its positive among those of all classes.
    Compares cosine similarities times a scale of 25. `normalize: false` is Sohn's own form, on dot
    products; the penalty on norms that he adds is `sec: {target: zero}`.
    """

    samples_per_class: ClassVar[int | None] = 2

    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        from_weights=True,
        settings={
            **SEC_SETTINGS,
            "train.samples_per_class": 2,
        },
    )

    name: Literal["npair"] = "npair"
    normalize: bool = True
    """true compares cosine similarities, false dot products of raw embeddings."""
    scale: float = Field(25.0, gt=0, le=1000)
    """Multiplies the cosine similarities; raw embeddings are not scaled."""


class ResolvedNPair(ResolvedMetricLearningConfig, NPair):
    """The settings of N-pair without "auto"."""
