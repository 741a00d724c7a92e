"""Embedding statistics affected by SEC: the distribution of norms, and the angle of an update.

Zhang, Li and Zhang (NeurIPS 2020) argue that embeddings of different norms learn at different speeds:
the longer an embedding, the less a step changes its direction (by 1/norm^2 under SGD). These metrics
show the effect of SEC for an optimizer. Results stay on the device of the embeddings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.tensors import check_matrix


@torch.no_grad()
def norm_distribution(embeddings: Tensor) -> dict[str, Tensor]:
    """Compute statistics of the norms of raw embeddings (N, h), N >= 1.

    Returns:
        Scalars in float64: ``mean``, ``std`` (population standard deviation, divided by N), ``min``,
        ``max`` and ``variation``, the coefficient of variation std/mean (0 if all norms are 0). The last
        does not depend on the scale of the embeddings.

    Raises:
        ValueError: `embeddings` is not a floating-point matrix (N, h) with N >= 1.
    """
    _check_rows("embeddings", embeddings)
    norms: Tensor = torch.linalg.vector_norm(embeddings.double(), dim=1)
    mean, std = norms.mean(), norms.std(correction=0)
    return {
        "mean": mean,
        "std": std,
        "min": norms.min(),
        "max": norms.max(),
        "variation": torch.where(mean > 0, std / mean, 0.0),
    }


@torch.no_grad()
def angular_update(before: Tensor, after: Tensor) -> Tensor:
    """Compute the mean angle, in radians, between the embeddings (N, h) of the same images at two times.

    Embed the images in evaluation mode right before and right after an optimizer step, so that the angle
    shows the effect of the step alone.

    The angle of two directions u and v is ``2 atan2(||u - v||, ||u + v||)`` in float64 (Kahan's formula),
    which is accurate also for angles that a cosine cannot distinguish from 0. A row of zeros has no
    direction: the angle counts as 0 if both rows are 0, and as a right angle if one is.

    Returns:
        A scalar in float64, on the device of `before`.

    Raises:
        ValueError: the two shapes are not the same (N, h) with N >= 1.
    """
    _check_rows("before", before)
    _check_rows("after", after)
    if after.shape != before.shape:
        raise ValueError(
            f"after must have the shape of before, {tuple(before.shape)}; given {tuple(after.shape)}"
        )
    u, v = F.normalize(before.double(), dim=1), F.normalize(after.double(), dim=1)
    difference: Tensor = torch.linalg.vector_norm(u - v, dim=1)
    total: Tensor = torch.linalg.vector_norm(u + v, dim=1)
    return 2 * torch.atan2(difference, total).mean()


def _check_rows(name: str, value: Tensor) -> None:
    check_matrix(name, value, "(N, h)")
    if value.shape[0] == 0:
        raise ValueError(f"{name} must have at least one row; given {tuple(value.shape)}")
