"""Proxy-Anchor (Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020)."""

from torch import Tensor

from dasl_core.methods.base import BuildInputs
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.spec.methods.proxy_anchor import ResolvedProxyAnchor


class ProxyAnchor(MetricLearning, name="proxy_anchor"):
    """Proxy-Anchor: compare a learned embedding of each class, its proxy, with all images of the batch."""

    settings: ResolvedProxyAnchor

    def __init__(self, settings: ResolvedProxyAnchor, inputs: BuildInputs) -> None:
        from pytorch_metric_learning.losses import ProxyAnchorLoss

        super().__init__(settings, inputs)
        assert inputs.num_classes is not None, "resolve refuses a data set without classes"
        self.criterion = ProxyAnchorLoss(
            inputs.num_classes, settings.embedding_dim, settings.margin, settings.alpha
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(embeddings, labels)
        return loss

    def learning_rates(self) -> dict[str, float]:
        return {"criterion.proxies": self.settings.proxy_lr}
