"""What methods have in common that compare the embeddings of two views."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dasl_core.methods.base import Method, Outputs


class TwoViewMethod(Method):
    """A method whose only head gives the embeddings of both views, which its loss compares."""

    projector: nn.Module

    @property
    def head(self) -> nn.Module:
        """From features to embeddings; overridden where the paper gives it another name."""
        return self.projector

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        # One pass over both views: batch statistics are those of both, as in SimCLR's code.
        embeddings = self.head(self.backbone(torch.cat(list(views))))
        return {"embeddings": embeddings.unflatten(0, (len(views), -1))}
