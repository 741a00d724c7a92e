"""Gradient shares: how large the gradient of a regularizer is, relative to that of the loss it is added to.

A weight means another experiment with each loss: the same 0.5 gives DAR's chain 1 % of Barlow Twins' gradient and
one to six times DINO's (`benchmarks.shares`). The gradients are those of the backbone's outputs, because the embeddings of some methods
(DINO, iBOT, SwAV) have none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from dasl_core.distributed import all_reduce_sum
from dasl_core.tensors import full_precision


class GradientShare(NamedTuple):
    """Norms of the gradients of the loss and of a term, and the cosine of the two; float64 scalars on the device."""

    loss_norm: Tensor
    term_norm: Tensor
    cosine: Tensor

    @property
    def share(self) -> Tensor:
        """Norm of the term's gradient relative to the loss's; 0 where the loss has none, as when all triplets are apart."""
        return torch.where(self.loss_norm > 0, self.term_norm / self.loss_norm, 0)


def gradient_shares(
    loss: Tensor,
    terms: Mapping[str, Tensor],
    outputs: Sequence[Tensor],
    *,
    scale: Callable[[Tensor], Tensor] = lambda term: term,
    group: ProcessGroup | None = None,
) -> dict[str, GradientShare]:
    """Measure the gradients of a loss and of each term, without the weight, with respect to `outputs`.

    The graph is kept for the backward that follows, and no weight gets a gradient. It does not wait for the device.

    Args:
        loss: scalar loss of the method, without the terms.
        terms: scalar terms by name.
        outputs: all outputs of the backbone in this step, such as its features (B, F) of each crop.
        scale: applied to the loss and the terms (`GradScaler.scale`); it cancels in a share, not in the norms.
        group: process group that shares the batch, over which squared norms are summed; None: this process holds
            all of it.
    """

    def gradient(term: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(
            scale(term), outputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return [full_precision(each) for each in found]

    def product(first: list[Tensor], second: list[Tensor]) -> Tensor:
        pairs = zip(first, second, strict=True)
        return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in pairs]).sum()

    of_loss = gradient(loss)
    rows = []
    for term in terms.values():
        of_term = gradient(term)
        rows.append([product(of_term, of_term), product(of_loss, of_term)])
    sums = torch.stack([product(of_loss, of_loss), *(each for row in rows for each in row)])
    loss_square, *others = all_reduce_sum(sums, group).unbind()
    return {
        name: GradientShare(
            loss_square.sqrt(),
            square.sqrt(),
            (dot / (loss_square * square).sqrt()).nan_to_num(),
        )
        for name, square, dot in zip(terms, others[::2], others[1::2], strict=True)
    }
