"""The backbone of a checkpoint, run as in the evaluations of its training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dasl_core.export.checkpoint import read_checkpoint
from dasl_core.export.network import exported_network
from dasl_core.spec import ResolvedJobSpec
from dasl_core.spec.finished import features_problem
from dasl_core.spec.problems import SpecError
from dasl_core.train.features import ImageEncoder
from dasl_core.train.precision import weight_dtype
from dasl_core.vocabulary import FeatureKind


@dataclass(frozen=True)
class TrainedBackbone:
    """A backbone in eval mode on a device, with the spec of its training."""

    spec: ResolvedJobSpec
    network: nn.Module
    device: torch.device

    def encoder(
        self,
        *,
        keepalive: Callable[[], object] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> ImageEncoder:
        """Return what reads images as its training did; arguments as for `ImageEncoder`."""
        return ImageEncoder(self.spec, self.device, keepalive=keepalive, check=check)

    def encode(self, kind: FeatureKind) -> Callable[[Tensor], Tensor]:
        """Return a function from images (B, C, S, S) to features (B, d), or patch features (B, P, d).

        Tokens are taken after the last block and timm's final normalization, if any.

        Raises:
            SpecError: the backbone has no such features.
        """
        problem = features_problem(kind, self.spec.backbone)
        if problem is not None:
            raise SpecError([problem])
        if kind == "pooled":
            return self.network
        # All of timm's transformers have these.
        network = cast(Any, self.network)
        prefix = int(network.num_prefix_tokens)

        def tokens(images: Tensor) -> Tensor:
            features: Tensor = network.forward_features(images)
            return features[:, 0] if kind == "cls" else features[:, prefix:]

        return tokens


def load_backbone(folder: Path, device: torch.device) -> TrainedBackbone:
    """Load the backbone of a checkpoint's folder, without running code from it.

    Raises:
        ExportError: the folder is not a checkpoint, is damaged, or of a network that DASL cannot build.
    """
    spec, _, _, weights = read_checkpoint(folder)
    network = exported_network(spec.backbone, weights)
    network = network.to(device=device, dtype=weight_dtype(spec.train.precision))
    if spec.train.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return TrainedBackbone(spec, network, device)
