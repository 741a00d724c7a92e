"""Settings of Barlow Twins."""

from typing import ClassVar, Literal

from pydantic import Field

from dasl_core.spec.methods.config import DecorrelationConfig, ResolvedDecorrelationConfig
from dasl_core.spec.recipes import AtMostAllEpochs, Authors


class BarlowTwins(DecorrelationConfig):
    """Barlow Twins (Zbontar et al., ICML 2021, https://arxiv.org/abs/2103.03230).

    Makes each coordinate of an embedding agree between the two views of an image and decorrelates it from
    all other coordinates.
    The loss compares coordinates, not directions, so `sec` is refused.
    """

    # facebookresearch/barlowtwins, main.py.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet",),
        settings={
            "method.separate_views": True,
            "method.projection_dim": 8192,
            "method.hidden_dim": 8192,
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "train.optimizer.name": "lars",
            "train.optimizer.lr_end": 0.001,
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )

    name: Literal["barlow_twins"] = "barlow_twins"
    redundancy: float = Field(0.0051, ge=0, le=1e6)
    """Weight of the squared correlations between different coordinates, the paper's lambda: 0.005 in the
    paper, 0.0051 in the authors' code."""
    loss_scale: float = Field(0.024, gt=0, le=1e6)
    """Factor on the loss, as in the authors' first code. With LARS, which adapts weights to the size of their
    gradients, it is a factor on the learning rate of biases and norms: 0.2 times 0.024 is the 0.0048 of their
    current code."""


class ResolvedBarlowTwins(ResolvedDecorrelationConfig, BarlowTwins):
    """Barlow Twins' settings without "auto"."""
