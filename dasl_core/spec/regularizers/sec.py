"""Settings of the spherical embedding constraint (SEC)."""

from typing import Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.fields import Weight
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.regularizers.config import RegularizerConfig, RegularizerContext, Share


class SEC(RegularizerConfig):
    """Spherical embedding constraint (Zhang et al., NeurIPS 2020) on the raw embedding norms."""

    name = "sec"
    top_level = True

    weight: Weight | Auto | None = "auto"
    """The factor eta. The authors multiply their contrastive loss by temperature/0.07, and `simclr` here does
    not: divide their eta by this factor (7.14 at temperature 0.5). "auto": chosen by `share`."""
    target: Literal["mean", "zero"] = "mean"
    """The value that all norms are pulled to: their mean, or 0, which is plain L2 regularization."""
    momentum: float = Field(1.0, gt=0, le=1)
    """rho of the moving average of the mean norm; 1 uses the mean of the batch."""
    ramp: bool | Auto = "auto"
    """Increase the weight linearly from 0 over the whole training. "auto": true for self-supervised methods,
    as the authors do, false for supervised ones."""

    @property
    def weight_schedule(self) -> Literal["constant", "linear"]:
        return "linear" if self.ramp is True else "constant"

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        problems = Problems(super().check(context))
        if not context.method.compares_directions:
            problems.add(
                "sec",
                "equalizes the norms of embeddings for a loss that compares their directions; that "
                f"of {context.method.name} does not",
                "",
                "null, or a method that compares directions, such as 'simclr'",
            )
        if self.target == "zero" and self.momentum != 1:
            cause, instead = "sec.target: zero", "sec.target: mean"
            problems.add_no_effect("sec.momentum", self.momentum, cause, instead)
        return problems

    def resolve(self, context: RegularizerContext) -> "ResolvedSEC":
        """Choose the share and the ramp."""
        automatic = {"ramp": not context.method.supervised}
        return self.without_auto(ResolvedSEC, automatic, **self.resolved_strength())


class ResolvedSEC(SEC):
    """SEC with its weight or share, and its ramp."""

    weight: Weight | None
    share: Share | None
    ramp: bool
