"""Proxy-Anchor (Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020)."""

from typing import Self

from torch import Tensor, nn

from dasl_core.methods.base import register
from dasl_core.methods.metric_learning import MetricLearning, linear_head
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.methods.proxy_anchor import ResolvedProxyAnchor


@register("proxy_anchor")
class ProxyAnchor(MetricLearning):
    """Proxy-Anchor: compare a learned embedding of each class, its proxy, with all images of the batch."""

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear | nn.Sequential,
        num_classes: int,
        *,
        margin: float = 0.1,
        alpha: float = 32.0,
        proxy_lr: float = 100.0,
    ) -> None:
        """Build the method; `proxy_lr` is a factor on the learning rate of the proxies."""
        from pytorch_metric_learning.losses import ProxyAnchorLoss

        super().__init__(backbone, head)
        self.proxy_lr = proxy_lr
        self.criterion = ProxyAnchorLoss(num_classes, self.embedding_dim, margin, alpha)

    @classmethod
    def from_settings(
        cls,
        settings: ResolvedProxyAnchor,
        backbone: ResolvedBackbone,
        network: nn.Module,
        num_classes: int | None,
    ) -> Self:
        assert num_classes is not None, "resolve refuses a data set without classes"
        return cls(
            network,
            linear_head(network, settings),
            num_classes,
            margin=settings.margin,
            alpha=settings.alpha,
            proxy_lr=settings.proxy_lr,
        )

    def compare(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(embeddings, labels)
        return loss

    def learning_rates(self) -> dict[str, float]:
        return {"criterion.proxies": self.proxy_lr}
