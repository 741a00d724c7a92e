"""From gradients to new weights: clipping, loss scaling, and the guard against NaN."""

import torch
from torch import Tensor

from dasl_core.spec import Clip


class Updater:
    """Applies gradients, and leaves a step out whose gradients are not finite.

    Gradients are averaged over ranks before they come here, so every rank decides alike.

    Args:
        clip: of the unscaled gradients; None leaves them as they are.
        buffers: what a forward changes beside the weights (running statistics, centres, queues). They
            are put back when a step is left out: a NaN in them would stay for good.
        scaled: whether losses are scaled, for float16.
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
        self._kept = [buffer.clone() for buffer in buffers]
        self.overflowed = False
        """Whether the last step was left out because the loss scale is still too large for float16:
        the search for it, and nothing to tell of."""

    def keep_buffers(self) -> None:
        """Remember the buffers as they are before a forward."""
        if self.buffers:
            torch._foreach_copy_(self._kept, self.buffers)

    def unscale(self) -> None:
        """Take the loss scale out of the gradients."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)

    def apply(self) -> tuple[Tensor, bool]:
        """Clip and apply the gradients.

        Returns:
            The norm of all gradients before clipping, and whether the weights were updated.
        """
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = bool(torch.isfinite(norm))
        self.overflowed = not finite and self.scaler.get_scale() > 1
        if finite:
            if self.clip is not None and self.clip.each:
                clip_each(gradients, self.clip.norm)
            elif self.clip is not None:
                torch.nn.utils.clip_grads_with_norm_(self.weights, self.clip.norm, norm)
            self.scaler.step(self.optimizer)
        else:
            if self.buffers:
                torch._foreach_copy_(self.buffers, self._kept)
        if self.scaler.is_enabled():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, finite


@torch.no_grad()
def clip_each(gradients: list[Tensor], limit: float) -> None:
    """Shorten each gradient to at most `limit` by itself, as DINO's code does."""
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    factors = (limit / (norms + 1e-6)).clamp(max=1)  # no wait for the device
    for gradient, factor in zip(gradients, factors, strict=True):
        gradient.mul_(factor)
