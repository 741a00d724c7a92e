"""The terms of the regularizers that DAR and SEC are compared with."""

import torch
from torch import Tensor

from dasl_core.methods import Step
from dasl_core.regularizers import (
    koleo_loss,
    negative_margin_loss,
    sigreg_loss,
    uniformity_loss,
    visreg_loss,
)
from dasl_core.seeds import stream
from dasl_core.spec.rivals import (
    KoLeo,
    NegativeMargin,
    PairRival,
    Rival,
    SIGReg,
    Uniformity,
    VISReg,
)
from dasl_core.tensors import to_device


def rival_loss(rival: Rival, embeddings: Tensor, step: Step, seed: int) -> Tensor:
    """Compute the unweighted term of one regularizer, the same on all ranks.

    Args:
        embeddings: (V, N, h), raw, of V views of the global batch.
        step: labels and indices of the global batch.
        seed: of the random directions, which have a stream of their own for each step.
    """
    if isinstance(rival, PairRival):
        labels = to_device(_labels(rival, step), embeddings.device).repeat(len(embeddings))
        return _pair_loss(rival, embeddings.flatten(0, 1), labels)
    generator: torch.Generator = stream(seed, "rivals", step.index)
    if isinstance(rival, SIGReg):
        return sigreg_loss(embeddings, slices=rival.slices, generator=generator)
    assert isinstance(rival, VISReg)
    return visreg_loss(embeddings, slices=rival.slices, generator=generator)


def _labels(rival: PairRival, step: Step) -> Tensor:
    if rival.labels == "instance":
        return step.indices
    assert step.labels is not None, "resolve refuses a data set without classes"
    return step.labels


def _pair_loss(rival: PairRival, embeddings: Tensor, labels: Tensor) -> Tensor:
    if isinstance(rival, Uniformity):
        return uniformity_loss(embeddings, labels, rival.t)
    if isinstance(rival, NegativeMargin):
        return negative_margin_loss(embeddings, labels, rival.margin)
    assert isinstance(rival, KoLeo)
    return koleo_loss(embeddings, labels)
