"""Settings of Proxy-Anchor."""

from typing import ClassVar, Literal

from pydantic import Field

from dasl_core.spec.methods.config import MetricLearningConfig, Recipe, ResolvedMetricLearningConfig
from dasl_core.spec.recipes import Authors


class ProxyAnchor(MetricLearningConfig):
    """Proxy-Anchor (Kim et al., CVPR 2020, https://arxiv.org/abs/2003.13911).

    Each class has a proxy, a learned embedding, which is compared with all images of the batch.
    """

    # With SGD's usual learning rate, a factor of 100 is too high for proxies: R@1 fell below that of
    # the untrained network.
    recipe: ClassVar[Recipe] = MetricLearningConfig.recipe._replace(
        lr={"adamw": 2e-4, "adam": 2e-4, "sgd": 0.01}
    )
    # tjddus9597/Proxy-Anchor-CVPR2020, README.md, for CUB-200 and a ResNet-50.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        from_weights=True,
        settings={
            "method.embedding_init": "kaiming",
            "augment.crop_scale": (0.08, 1.0),
            "backbone.freeze_batch_norm": "statistics",
            "backbone.pooling": "average_max",
            "train.clip": {"value": 10.0},
            "train.head_only_epochs": 5,
            "train.optimizer.name": "adamw",
            "train.optimizer.lr": 1e-4,
            "train.optimizer.step_decay": {"epochs": 5, "factor": 0.5},
            "train.samples_per_class": None,
            "train.warmup_epochs": 0,
        },
    )
    needs_pairs: ClassVar[bool] = False

    name: Literal["proxy_anchor"] = "proxy_anchor"
    margin: float = Field(0.1, ge=0, lt=1)
    """A positive is close enough if its cosine with the proxy is above the margin, a negative far enough if
    it is below minus the margin."""
    alpha: float = Field(32.0, gt=0, le=1000)
    """How much more weight hard images get."""
    proxy_lr: float = Field(100.0, gt=0, le=10_000)
    """Factor on the learning rate of the proxies."""


class ResolvedProxyAnchor(ResolvedMetricLearningConfig, ProxyAnchor):
    """The settings of Proxy-Anchor without "auto"."""
