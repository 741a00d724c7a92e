"""Optimizer updates: clipping, loss scaling, and skipping of steps with non-finite gradients."""

import torch
from torch import Tensor

from dasl_core.spec import Clip


class Updater:
    """Applies gradients, and skips a step whose gradients are not finite.

    Gradients are averaged over ranks before, so all ranks make the same decision.

    Args:
        clip: of the unscaled gradients; None leaves them as they are.
        buffers: tensors that a forward changes (running statistics, centers, queues). They are
            restored when a step is skipped, as a NaN would persist in them.
        scaled: whether losses are scaled, for float16.

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
    ) -> None:
        self.optimizer, self.clip, self.buffers = optimizer, clip, buffers
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

    def apply(self) -> tuple[Tensor, bool]:
        """Clip and apply the gradients, or skip the step if they are not finite.

        Returns:
            The norm of all gradients before clipping, and whether the weights were updated.
        """
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = bool(torch.isfinite(norm))
        self.overflowed = not finite and self.scaler.get_scale() > 1
        if finite:
            if self.clip is not None:
                self._clip(self.clip, gradients, norm)
            self.scaler.step(self.optimizer)
        elif self.buffers:
            torch._foreach_copy_(self.buffers, self._snapshot)
        if self.scaler.is_enabled():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, finite

    def _clip(self, clip: Clip, gradients: list[Tensor], norm: Tensor) -> None:
        if clip.value is not None:
            torch.nn.utils.clip_grad_value_(self.weights, clip.value)
        elif clip.norm is not None and clip.each:
            clip_each(gradients, clip.norm)
        elif clip.norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.weights, clip.norm, norm)


@torch.no_grad()
def clip_each(gradients: list[Tensor], limit: float) -> None:
    """Clip the norm of each gradient separately, as DINO's code does."""
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    factors = (limit / (norms + 1e-6)).clamp(max=1)  # no synchronization with the device
    for gradient, factor in zip(gradients, factors, strict=True):
        gradient.mul_(factor)
