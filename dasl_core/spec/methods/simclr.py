"""Settings of SimCLR."""

from typing import Literal

from pydantic import Field

from dasl_core.spec.methods.config import (
    ProjectionHeadConfig,
    ResolveContext,
    Temperature,
    Width,
    register,
    register_resolved,
)


@register
class SimCLR(ProjectionHeadConfig):
    """SimCLR (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709).

    Two views of an image attract each other and repel all other images.
    """

    name: Literal["simclr"] = "simclr"
    temperature: Temperature = Field(0.2, description="Divides the cosine similarities.")

    def resolve(self, context: ResolveContext) -> "ResolvedSimCLR":
        """Choose a hidden layer as wide as the features."""
        return self.narrow(ResolvedSimCLR, hidden_dim=self.resolved_hidden_dim(context))


@register_resolved
class ResolvedSimCLR(SimCLR):
    """SimCLR's settings without "auto"."""

    hidden_dim: Width
