"""Settings of the softmax losses with an angular margin."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    MetricLearningConfig,
    ResolveContext,
    ResolvedMetricLearningConfig,
)
from dasl_core.spec.problems import FieldProblem, Problems

Margin = Annotated[float, Field(ge=0, le=16)]
Scale = Annotated[float, Field(gt=0, le=1000)]
# Of the papers: SphereFace's factor of the angle, CosFace's cosine, ArcFace's radians.
MARGINS = {"sphereface": 4.0, "cosface": 0.35, "arcface": 0.5}
# Beyond them no image could satisfy the margin.
LARGEST_MARGINS = {"sphereface": 16.0, "cosface": 2.0, "arcface": 3.14}


class MarginSoftmax(MetricLearningConfig):
    """ArcFace, CosFace and SphereFace: softmax losses with an angular margin (https://arxiv.org/abs/1801.07698).

    Classifies each image by the cosines of its embedding with a learned vector of each class; that of its own
    class must win by a margin: ArcFace (Deng et al., CVPR 2019), CosFace (Wang et al., CVPR 2018,
    https://arxiv.org/abs/1801.09414) or SphereFace (Liu et al., CVPR 2017, https://arxiv.org/abs/1704.08063).
    SEC acts on the embeddings before they are normalized. Batches are drawn without regard to classes.
    SphereFace's authors ease the margin in during training; here it is whole from the first step.
    """

    # The authors' 0.1 for batches of 512, of ArcFace and CosFace.
    recipe: ClassVar = MetricLearningConfig.recipe._replace(
        lr={"adamw": 2e-4, "adam": 2e-4, "sgd": 0.05}
    )
    samples_per_class: ClassVar[int | None] = None
    needs_pairs: ClassVar[bool] = False

    name: Literal["margin_softmax"] = "margin_softmax"
    loss: Literal["sphereface", "cosface", "arcface"] = "arcface"
    """How an image's own class is handicapped: its angle is multiplied by `margin` ("sphereface"), its cosine
    is lowered by it ("cosface"), or its angle is raised by it ("arcface")."""
    margin: Margin | Auto = "auto"
    """A whole number from 1 for "sphereface", a difference of cosines up to 2 for "cosface", radians up to
    3.14 for "arcface". "auto": 4, 0.35 and 0.5, the values of the papers."""
    scale: Scale | Auto | None = "auto"
    """Multiplies the cosines. null, for "sphereface" only: each embedding's own norm. "auto": null for
    "sphereface" and 64 for the others, as in the papers."""

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return the problems of a margin or a scale that the loss does not have."""
        problems = Problems()
        margin, largest = self.margin, LARGEST_MARGINS[self.loss]
        is_multiple = self.loss == "sphereface"
        if margin != "auto" and (
            margin > largest or (is_multiple and (margin < 1 or margin != int(margin)))
        ):
            expected = "a whole number from 1 to 16" if is_multiple else f"at most {largest:g}"
            problems.add(
                "method.margin", f"is no margin of loss: {self.loss}", f"{margin:g}", expected
            )
        if self.scale is None and not is_multiple:
            problems.add(
                "method.scale",
                f"must be a number with loss: {self.loss}, which normalizes the embeddings",
                "null",
                "such as 64, or method.loss: sphereface",
            )
        return problems

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        scale = None if self.loss == "sphereface" else 64.0
        return {"margin": MARGINS[self.loss], "scale": scale}


class ResolvedMarginSoftmax(ResolvedMetricLearningConfig, MarginSoftmax):
    """The settings of a softmax loss with a margin, without "auto"."""

    margin: Margin
    scale: Scale | None
