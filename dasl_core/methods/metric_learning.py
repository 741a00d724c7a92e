"""What supervised metric learning methods share: an embedding head, and a loss on all ranks."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dasl_core.distributed import gather
from dasl_core.methods.base import Method, Outputs, Step
from dasl_core.models.backbone import build_backbone, feature_width
from dasl_core.spec import ResolvedBackbone
from dasl_core.tensors import full_precision


class MetricLearning(Method):
    """A linear embedding of one view of each image, compared within the global batch by classes.

    The losses are those of pytorch-metric-learning. It is imported by the methods that are built
    with it, so that a machine without it can train all others.
    """

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        (view,) = views
        return {"embeddings": self.head(self.backbone(view)).unsqueeze(0)}

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Every rank computes the loss of the global batch: with a gather whose backward sums over
        ranks, the mean of their gradients is its gradient."""
        assert step.labels is not None, "resolve refuses a data set without classes"
        embeddings = full_precision(outputs["embeddings"][0])
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compare(gather(embeddings), step.labels.to(embeddings.device))

    @abstractmethod
    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of embeddings (N, h), raw, of classes (N,) from 0; 0 where nothing can be
        compared."""


def backbone_and_head(
    backbone: ResolvedBackbone, embedding_dim: int
) -> tuple[nn.Module, nn.Linear]:
    """Build what every method of this kind trains."""
    network = build_backbone(backbone)
    return network, nn.Linear(feature_width(network), embedding_dim)
