"""Batch normalization over the global batch, on any device.

With statistics of each rank alone, which `train.sync_batch_norm: false` asks for, a ResNet computes another function on
two processes than on one. On GPUs torch.nn.SyncBatchNorm is used, which has fused kernels; it refuses CPU tensors, for which
this module has its own layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.distributed import all_ranks, gather, mean_over_ranks, world_size


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


@torch.no_grad()
def average_statistics(module: nn.Module) -> None:
    """Replace the running statistics of `module` by their means over ranks, in the layers that track them."""
    statistics = [
        buffer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and layer.training
        for buffer in (layer.running_mean, layer.running_var)
        if buffer is not None
    ]
    if statistics:
        means = mean_over_ranks(torch.cat(statistics), all_ranks())
        torch._foreach_copy_(statistics, list(means.split([len(each) for each in statistics])))


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
        shape = [1, -1] + [1] * (x.dim() - 2)
        own_mean = wide.mean(dims)
        centered = wide - own_mean.view(shape)
        # (W, 2, C) in one collective, whose latency is most of the time on a CPU. Combined as by Chan, Golub and
        # LeVeque (1979) for equal shares: E[x^2] - E[x]^2 cancels when the mean is large compared with the deviation.
        own = torch.stack([own_mean, centered.square().mean(dims)])
        means, variances = gather(own.unsqueeze(0), all_ranks()).unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        if self.track_running_stats:
            count = wide.numel() // wide.shape[1] * world_size()
            self._track(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        offset = (own_mean - mean) * scale
        if self.affine:
            offset = offset + self.bias
        return torch.addcmul(offset.view(shape), centered, scale.view(shape)).to(x.dtype)

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
