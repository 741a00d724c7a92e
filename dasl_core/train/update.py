"""Optimizer updates: clipping, loss scaling, and skipping of steps with non-finite gradients."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dasl_core.distributed import all_ranks, all_reduce_sum, is_sharded, local_shard
from dasl_core.spec import Clip
from dasl_core.train.optim import create_momenta

# Integer types by size, to restore tensors of any type bit for bit.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Updater:
    """Applies gradients, and skips a step whose gradients are not finite.

    Gradients are already averaged over ranks, so all ranks decide the same.

    Args:
        clip: clipping of the unscaled gradients; None for none.
        buffers: tensors that a forward changes (running statistics, centers, queues). They are
            restored after a skipped step, because a NaN would persist in them.
        scaled: whether losses are scaled, for float16.
        deferred: whether the device decides, so that the host does not wait for the gradients: for GPUs, except with
            float16, whose scaler makes the host wait.

    Attributes:
        overflowed: whether the last step was skipped because the loss scale is still too large for
            float16. This is normal while the scaler searches for a scale.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        clip: Clip | None,
        buffers: list[Tensor],
        device: torch.device,
        *,
        scaled: bool,
        deferred: bool = False,
    ) -> None:
        assert not (scaled and deferred), "a loss scale is searched by the host"
        self.optimizer, self.clip, self.buffers = optimizer, clip, buffers
        self.deferred = deferred
        self.scaler = torch.amp.GradScaler(device.type, enabled=scaled)
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]
        self._snapshot = [buffer.clone() for buffer in buffers]
        self.overflowed = False

    def snapshot_buffers(self) -> None:
        """Copy the buffers before a forward, to restore them if the step is skipped."""
        if self.buffers:
            torch._foreach_copy_(self._snapshot, self.buffers)

    def unscale(self) -> None:
        """Divide the gradients by the loss scale."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)

    def apply(self) -> tuple[Tensor, Tensor | bool]:
        """Clip and apply the gradients, or skip the step if they are not finite.

        Returns:
            The norm of all gradients before clipping, and whether the weights were updated: with
            `deferred` a tensor () bool that the device still computes.
        """
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = total_norm(gradients)
        updated: Tensor | bool
        if self.deferred:
            updated = torch.isfinite(norm)
            if self.clip is not None:
                self._clip(self.clip, gradients, norm)
            self._step_where(updated)
            restore_unless(updated, self.buffers, self._snapshot)
        else:
            updated = bool(torch.isfinite(norm))
            self.overflowed = not updated and self.scaler.get_scale() > 1
            if updated:
                if self.clip is not None:
                    self._clip(self.clip, gradients, norm)
                self.scaler.step(self.optimizer)
            elif self.buffers:
                torch._foreach_copy_(self.buffers, self._snapshot)
            if self.scaler.is_enabled():
                self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, updated

    def _step_where(self, updated: Tensor) -> None:
        """Run an optimizer step that changes neither weights nor state if `updated` is false."""
        optimizer: Any = self.optimizer
        weights = [weight for weight in self.weights if weight.grad is not None]
        create_momenta(optimizer)  # which a skipped first step would leave uninitialized
        if all(group.get("fused") for group in optimizer.param_groups):
            # Fused optimizers take the flag of torch's GradScaler.
            optimizer.found_inf = (~updated).float()
            optimizer.step()
            return
        state = [optimizer.state[weight].values() for weight in weights]
        changing = [*weights, *(value for values in state for value in values)]
        changing = [local_shard(tensor) for tensor in changing]
        before = torch._foreach_clone(changing)
        optimizer.step()
        restore_unless(updated, changing, before)

    def _clip(self, clip: Clip, gradients: list[Tensor], norm: Tensor) -> None:
        if clip.value is not None:
            local = [local_shard(gradient) for gradient in gradients]
            torch._foreach_clamp_min_(local, -clip.value)
            torch._foreach_clamp_max_(local, clip.value)
        elif clip.norm is not None and clip.each:
            clip_each(gradients, clip.norm)
        elif clip.norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.weights, clip.norm, norm)


@torch.no_grad()
def restore_unless(flag: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Restore tensors bit for bit, in place, from copies `before` if a flag () bool is false.

    The host does not read the flag. Arithmetic on integers of the same bits avoids NaN times 0, and takes three
    operations for all tensors of a size, where `torch.where` takes two for each.
    """
    by_size: dict[tuple[torch.device, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for tensor, old in zip(tensors, before, strict=True):
        bits = _INTEGERS[tensor.itemsize]
        by_size[tensor.device, tensor.itemsize].append((tensor.view(bits), old.view(bits)))
    for (device, size), pairs in by_size.items():
        now = [tensor for tensor, _ in pairs]
        changes = list(torch._foreach_sub([old for _, old in pairs], now))
        torch._foreach_mul_(changes, (~flag).to(device, _INTEGERS[size]))
        torch._foreach_add_(now, changes)


@torch.no_grad()
def clip_each(gradients: list[Tensor], limit: float) -> None:
    """Clip the norm of each gradient separately, as in DINO's code."""
    # No synchronization with the device.
    factors = (limit / (norms_of(gradients) + 1e-6)).clamp(max=1)
    torch._foreach_mul_([local_shard(gradient) for gradient in gradients], list(factors))


@torch.no_grad()
def norms_of(gradients: Sequence[Tensor]) -> Tensor:
    """Compute the norm of each gradient, (P,), over all ranks if FSDP has sharded them."""
    norms = torch.stack(torch._foreach_norm([local_shard(gradient) for gradient in gradients]))
    if not is_sharded(gradients[0]):
        return norms
    return all_reduce_sum(norms.double().square(), all_ranks()).sqrt().to(norms.dtype)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Compute the norm of all gradients together, over all ranks if FSDP has sharded them."""
    if gradients and is_sharded(gradients[0]):
        norm: Tensor = torch.linalg.vector_norm(norms_of(gradients))
        return norm
    return torch.nn.utils.get_total_norm(gradients)
