"""Batch normalization over the global batch, on any device.

With statistics of each rank alone, a ResNet would compute another function on two processes than on
one. On GPUs torch.nn.SyncBatchNorm is used, which has fused kernels; it refuses CPU tensors, for which
this module has its own layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.distributed import all_ranks, all_reduce_sum, world_size


def synchronize_batchnorm(module: nn.Module, device: torch.device) -> nn.Module:
    """Make every BatchNorm layer in `module` use the statistics of all ranks.

    Parameters, buffers and their names do not change, and neither does the state_dict. On a CPU the
    layers are changed in place; on a GPU they are replaced.
    """
    if device.type == "cuda":
        return cast(nn.Module, convert_sync_batchnorm(module))
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            # Each layer type has its subclass, so that BatchNormAct2d keeps its activation.
            layer.__class__ = _global_variant(type(layer))
    return module


def _global_variant(layer_type: type[_BatchNorm]) -> type[_BatchNorm]:
    if issubclass(layer_type, _GlobalStatistics):
        return layer_type
    if issubclass(layer_type, BatchNormAct2d):
        return _GlobalBatchNormAct2d
    return _GlobalBatchNorm


class _GlobalStatistics(_BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        assert input.dim() >= 2, "batch normalization needs (N, C, ...)"

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize (N, C, ...) over N and the dimensions after C, with the statistics of all ranks."""
        if not self.training or world_size() == 1:
            # Not super(): BatchNormAct2d would apply the activation, which the caller applies later.
            return _BatchNorm.forward(self, x)
        assert self.momentum is not None, "a cumulative average is not supported"
        dims = [0, *range(2, x.dim())]
        # float32 at least, as torch's own kernels do under autocast.
        wide = x if x.dtype == torch.float64 else x.float()
        count = wide.numel() // wide.shape[1] * world_size()
        mean = all_reduce_sum(wide.sum(dims), all_ranks()) / count
        shape = [1, -1] + [1] * (x.dim() - 2)
        centered = wide - mean.view(shape)
        # Two passes: E[x^2] - E[x]^2 cancels when the mean is large compared with the deviation.
        variance = all_reduce_sum(centered.square().sum(dims), all_ranks()) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        result = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        momentum = cast(float, self.momentum)
        cast(Tensor, self.running_mean).lerp_(
            mean.to(cast(Tensor, self.running_mean).dtype), momentum
        )
        cast(Tensor, self.running_var).lerp_(
            unbiased_variance.to(cast(Tensor, self.running_var).dtype), momentum
        )
        cast(Tensor, self.num_batches_tracked).add_(1)


class _GlobalBatchNorm(_GlobalStatistics):
    def forward(self, input: Tensor) -> Tensor:
        return self.normalize(input)


class _GlobalBatchNormAct2d(_GlobalStatistics, BatchNormAct2d):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        # timm has no precise types for `act` and `drop`.
        activate, drop = cast(nn.Module, self.act), cast(nn.Module, self.drop)
        return cast(Tensor, activate(drop(self.normalize(x))))


@contextmanager
def untracked_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which the running statistics of `module` do not change, also in training mode.

    For a forward pass that is computed twice: its batch must count once.
    """
    buffers = [
        buffer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        for buffer in layer.buffers(recurse=False)
    ]
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, before in zip(buffers, kept, strict=True):
            # `.data` bypasses autograd's version counter: a graph may hold the buffer, although its
            # backward reads only the statistics of the batch.
            buffer.data.copy_(before)
