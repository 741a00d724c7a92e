"""Base of the methods that compare the embeddings of two views."""

from collections.abc import Sequence

from torch import Tensor, nn

from dasl_core.methods.base import Method, Outputs


class TwoViewMethod(Method):
    """A method with one head, whose loss compares the embeddings of both views."""

    projector: nn.Module

    @property
    def embedding_head(self) -> nn.Module:
        """The projector; overridden if the paper gives it another name."""
        return self.projector

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        return {"embeddings": self.apply_to_views(self.embed, views)}
