"""Initial networks of a run."""

import torch
from torch import nn

from dasl_core.distributed import rank, world_size
from dasl_core.methods import Method, build_method
from dasl_core.models.batchnorm import synchronize_batchnorm
from dasl_core.models.checkpointing import checkpoint_blocks
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.precision import weight_dtype
from dasl_core.train.run import Run


def seeded_method(run: Run, backbone: nn.Module | None) -> Method:
    """Build the method with the same weights on every rank, then seed the rank's own random stream."""
    # A checkpoint contains all weights: the start weights may no longer exist.
    spec = run.spec if run.files.resume is None else without_start(run.spec)
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    method = build_method(spec, run.data.num_classes, backbone)
    method = method.to(device=run.device, dtype=weight_dtype(spec.train.precision))
    if spec.train.channels_last:
        method = method.to(memory_format=torch.channels_last)
    if world_size() > 1:
        synchronize_batchnorm(method, run.device)
    if spec.train.checkpoint_activations:
        checkpoint_blocks(method.backbone)
    if spec.train.compile:
        for network in {method.backbone, *method.teachers()}:
            network.compile()
    torch.manual_seed(derive_seed(spec.train.seed, "rank", rank()))
    return method


def without_start(spec: ResolvedJobSpec) -> ResolvedJobSpec:
    """Return the spec with random initial weights."""
    backbone = spec.backbone.model_copy(update={"pretrained": None})
    return spec.model_copy(update={"backbone": backbone})
