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

# Factors on a term that overflows in float16.
SCALES = (1.0, 2.0**-6, 2.0**-12, 2.0**-18, 2.0**-24)


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
    scale: Callable[[Tensor], Tensor] | None = None,
    group: ProcessGroup | None = None,
) -> dict[str, GradientShare]:
    """Measure the gradients of a loss and of each term, without the weight, with respect to `outputs`.

    The graph is kept for the backward that follows, and no weight gets a gradient. Without `scale` it does not wait for
    the device.

    Args:
        loss: scalar loss of the method, without the terms.
        terms: scalar terms by name.
        outputs: all outputs of the backbone in this step, such as its features (B, F) of each crop.
        scale: for float16, applied to the loss and the terms (`GradScaler.scale`), and cancelled in shares, not in
            norms. A term whose gradient overflows with it, which no weight has made small yet, is scaled less.
        group: process group that shares the batch, over which squared norms are summed; None: this process holds
            all of it.
    """

    def gradient(term: Tensor) -> list[Tensor]:
        scaled = term if scale is None else scale(term)
        found = torch.autograd.grad(
            scaled, outputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return [full_precision(each) for each in found]

    def product(first: list[Tensor], second: list[Tensor]) -> Tensor:
        pairs = zip(first, second, strict=True)
        return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in pairs]).sum()

    of_loss = gradient(loss)
    rows = []
    for term in terms.values():
        for factor in (1.0,) if scale is None else SCALES:
            of_term = gradient(term * factor)
            row = [product(of_term, of_term) / factor**2, product(of_loss, of_term) / factor]
            # All ranks decide the same, since the sums are those of all of them.
            if scale is None or bool(all_reduce_sum(row[0], group).isfinite()):
                break
        rows.append(row)
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
