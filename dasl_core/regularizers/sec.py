"""Spherical embedding constraint (SEC), which pulls the norms of raw embeddings to a common value.

Zhang, Li and Zhang, "Deep Metric Learning with Spherical Embedding", NeurIPS 2020. An angular loss
changes the direction of an embedding at a rate of 1/norm (1/norm^2 per SGD step), so embeddings of
different norms learn at different speeds; SEC makes the norms similar.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dasl_core.regularizers.base import Regularizer
from dasl_core.spec import ResolvedSEC
from dasl_core.tensors import check_choice, check_matrix, full_precision

Target = Literal["mean", "zero"]


class SphericalEmbeddingConstraint(nn.Module):
    """The loss ``(1/N) sum_i (||f_i|| - mu)^2`` over the raw (not normalized) embeddings of a batch.

    The caller applies the weight (eta in the paper) and its ramp. On several processes, pass the
    gathered global batch, so that mu and the loss are those of one process.

    Args:
        target: ``"mean"``: mu is a moving average of the mean norm, kept in the buffer ``mean`` and
            saved with the module; ``"zero"``: mu = 0, the L2-regularization variant.
        momentum: rho in ``mu_t = (1 - rho) mu_{t-1} + rho mean(||f||)``, above 0 and at most 1; the
            first batch sets mu. The paper's default is 1: mu is the mean norm of the current batch.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """

    mean: Tensor
    initialized: Tensor

    def __init__(self, target: Target = "mean", momentum: float = 1.0) -> None:
        super().__init__()
        check_choice("target", target, get_args(Target))
        if not 0.0 < momentum <= 1.0:
            raise ValueError(f"momentum must be a number above 0, at most 1; given {momentum!r}")
        self.target = target
        self.momentum = float(momentum)
        # float64, so that the state does not round a float64 run.
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Compute the loss of a batch of raw embeddings (N, h), a scalar in float32 or float64.

        In training mode mu is first updated with this batch, without gradient. In evaluation mode the stored mu is used
        (the batch mean if there is none yet).
        """
        check_matrix("embeddings", embeddings, "(N, h)")
        if embeddings.shape[0] == 0:
            raise ValueError("embeddings must have at least one row; given (0, h)")
        norms: Tensor = torch.linalg.vector_norm(full_precision(embeddings), dim=1)
        if self.target == "zero":
            return norms.square().mean()
        return (norms - self._target_norm(norms.detach())).square().mean()

    @torch.no_grad()
    def _target_norm(self, norms: Tensor) -> Tensor:
        batch_mean = norms.double().mean()
        rho = self.momentum if self.training else 0.0
        updated = (1 - rho) * self.mean + rho * batch_mean
        # torch.where, because a branch would wait for the device in every step.
        target_norm = torch.where(self.initialized, updated, batch_mean)
        if self.training:
            # A NaN must not enter the average, because training may skip its step.
            usable = batch_mean.isfinite()
            self.mean.copy_(torch.where(usable, target_norm, self.mean))
            self.initialized.logical_or_(usable)
        return target_norm.to(norms.dtype)

    def extra_repr(self) -> str:
        return f"target={self.target!r}, momentum={self.momentum}"


class SEC(Regularizer, name="sec"):
    """`SphericalEmbeddingConstraint` in a job."""

    def __init__(self, settings: ResolvedSEC, seed: int) -> None:
        super().__init__(settings, seed)
        self.constraint = SphericalEmbeddingConstraint(settings.target, settings.momentum)

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        term: Tensor = self.constraint(embeddings.flatten(0, 1))
        return term
