"""HCL (Robinson et al., "Contrastive Learning with Hard Negative Samples", ICLR 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.simclr import contrasted
from dasl_core.methods.two_views import TwoViewMethod
from dasl_core.models.heads import projection_head
from dasl_core.spec.methods.hcl import ResolvedHCL


class HCL(TwoViewMethod, name="hcl"):
    """HCL: SimCLR with hard negatives weighted more, corrected for expected false negatives."""

    settings: ResolvedHCL

    def __init__(self, settings: ResolvedHCL, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        self.projector = projection_head(
            inputs.features, settings.hidden_dim, settings.projection_dim
        )

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        s = self.settings
        return hard_negative_loss(
            outputs["embeddings"], s.temperature, s.tau_plus, s.beta, step.group
        )


def hard_negative_loss(
    embeddings: Tensor,
    temperature: float,
    tau_plus: float,
    beta: float,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Compute the debiased, hardness-weighted contrastive loss, the mean over this rank's 2B anchors.

    Robinson et al. 2021, eq. 4, and the authors' code.

    With p = exp(s+ / T) of the positive and q_j = exp(s_j / T) of the M = 2N - 2 negatives in the
    global batch::

        G = max((M sum_j(q_j^(1 + beta)) / sum_j(q_j^beta) - tau_plus M p) / (1 - tau_plus),
                M exp(-1 / T))
        loss = -log(p / (p + G))

    in logarithms, so that no exponential overflows. With `beta` and `tau_plus` 0 it equals NT-Xent. As
    there, anchors are local, and candidates come from all ranks.

    Args:
        embeddings: (2, B, h), raw; float16 and bfloat16 are computed in float32.
        temperature: T, divides the cosine similarities.
        tau_plus: probability that a negative is of the anchor's class, at least 0, below 1.
        beta: concentration on hard negatives; 0 weights all alike.
        group: process group over which the batch is shared; None: this process holds all of it.

    Raises:
        ValueError: an argument is invalid, or the global batch has no negatives.
    """
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus must be at least 0 and below 1; given {tau_plus}")
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be a finite number of at least 0; given {beta}")
    logits, itself, other_view = contrasted(embeddings, temperature, group)
    total = logits.shape[1] // 2
    if total < 2:
        raise ValueError(
            f"embeddings must be of at least 2 samples, for there to be negatives; given {total}"
        )
    with torch.autocast(logits.device.type, enabled=False):
        positive = logits.gather(1, other_view.unsqueeze(1)).squeeze(1)
        no_negative = torch.zeros_like(logits, dtype=torch.bool)
        no_negative.scatter_(1, torch.stack([itself, other_view], dim=1), value=True)

        def log_sum(sharpness: float) -> Tensor:
            return (sharpness * logits).masked_fill(no_negative, float("-inf")).logsumexp(dim=1)

        log_count = math.log(2 * total - 2)
        negatives = log_count + log_sum(1 + beta) - log_sum(beta)
        if tau_plus > 0:
            false = math.log(tau_plus) + log_count + positive
            # log(exp(negatives) - exp(false)) where that is above 0; elsewhere the bound applies.
            share = -torch.expm1((false - negatives).clamp(max=0))
            negatives = negatives + share.where(share > 0, 1).log() - math.log1p(-tau_plus)
            negatives = negatives.where(share > 0, float("-inf"))
            negatives = negatives.clamp(min=log_count - 1 / temperature)
        return F.softplus(negatives - positive).mean()
