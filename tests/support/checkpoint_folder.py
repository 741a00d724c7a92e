"""The folder of a checkpoint, of a network with random weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.export import export_backbone
from dasl_core.methods import build_method
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.precision import weight_dtype
from tests.support.training_world import resolved

METRICS: dict[str, Any] = {"step": 1, "epoch": 1.0, "evaluations": [], "losses": []}


def write_checkpoint(
    index: DatasetIndex, folder: Path, **spec: Any
) -> tuple[ResolvedJobSpec, nn.Module]:
    """Write the folder; return the spec for the images of an index, and the backbone as training evaluates it."""
    settings = resolved(index, **spec)
    torch.manual_seed(5)
    network = build_method(settings, None).representation.eval()
    network = network.to(weight_dtype(settings.train.precision))
    if settings.train.channels_last:
        network = network.to(memory_format=torch.channels_last)
    folder.mkdir()
    export_backbone(network, settings, METRICS, folder)
    return settings, network
