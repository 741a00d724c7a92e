"""Base of the supervised metric learning methods: an embedding head, and a loss over all ranks."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dasl_core.distributed import gather
from dasl_core.methods.base import BuildInputs, Method, Outputs, Step
from dasl_core.spec.methods.config import MetricLearningConfig
from dasl_core.tensors import full_precision, to_device


class MetricLearning(Method):
    """A linear embedding of one view of each image, compared by class within the global batch.

    Most losses are those of pytorch-metric-learning. Only the methods that use it import it, so that a
    machine without it can train all others.
    """

    def __init__(self, settings: MetricLearningConfig, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        self.head = linear_head(inputs.features, settings)

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        (view,) = views
        return {"embeddings": self.embed(view).unsqueeze(0)}

    @property
    def embedding_head(self) -> nn.Module:
        return self.head

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Compute the loss of the global batch on every rank.

        The backward of the gather sums over ranks, so the mean of the ranks' gradients is its gradient.
        """
        assert step.labels is not None, "resolve refuses a data set without classes"
        embeddings = full_precision(outputs["embeddings"][0])
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compare(
                gather(embeddings, step.group), to_device(step.labels, embeddings.device)
            )

    @abstractmethod
    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of raw embeddings (N, h) with classes (N,) from 0; 0 if none can be compared."""


def linear_head(features: int, settings: MetricLearningConfig) -> nn.Linear | nn.Sequential:
    """Build the embedding head for features of this width."""
    layer = nn.Linear(features, settings.embedding_dim)
    if settings.embedding_init == "kaiming":
        nn.init.kaiming_normal_(layer.weight, mode="fan_out")
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.BatchNorm1d(features), layer) if settings.embedding_norm else layer
