"""Retrieval: recall at K, by cosine similarity."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors


@torch.no_grad()
def recall_at_k(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    ks: Iterable[int],
    *,
    gallery: tuple[Tensor | np.ndarray, Tensor | np.ndarray] | None = None,
) -> dict[int, float]:
    """Recall at K: the share of queries with a sample of their class among their K nearest neighbors.

    See `recall_hits`, whose arguments and errors it shares.

    Returns:
        ``{K: recall}`` in the order of `ks`, recall from 0 to 1.
    """
    values = list(ks) if isinstance(ks, Iterable) else ks
    shares = recall_hits(x, y, values, gallery=gallery).double().mean(dim=0)
    return dict(zip(values, shares.tolist(), strict=True))


@torch.no_grad()
def recall_hits(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    ks: Iterable[int],
    *,
    gallery: tuple[Tensor | np.ndarray, Tensor | np.ndarray] | None = None,
) -> Tensor:
    """Whether each query has a sample of its class among its K nearest neighbors.

    Neighbors are ordered by cosine similarity; ties go to the earlier sample. Without a gallery, every
    sample is a query among all other samples. A query without another sample of its class is a miss at
    every K, as in the published results.

    Neighbors are counted, not sorted: a query is a hit at K if fewer than K samples of other classes
    are nearer than the nearest sample of its class. So a large K costs nothing, and memory is a few tiles.

    Args:
        x: (N, d) features; N >= 2 without a gallery.
        y: (N,) integer classes.
        ks: values of K, at least 1; limited to the number of neighbors.
        gallery: features (M, d) and classes (M,) in which the neighbors of `x` are searched.

    Returns:
        (N, len(ks)) bool, on the CPU.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    x = tensors.feature_matrix(x, "x", min_rows=2 if gallery is None else 1)
    y = tensors.label_vector(y, "y", len(x), x.device)
    gallery_x, gallery_y = x, y
    if gallery is not None:
        gallery_x = tensors.feature_matrix(gallery[0], "gallery[0]").to(x)
        gallery_y = tensors.label_vector(gallery[1], "gallery[1]", len(gallery_x), x.device)
        if gallery_x.shape[1] != x.shape[1]:
            raise ValueError(
                f"gallery[0] must have {x.shape[1]} columns, the width of x; given {gallery_x.shape[1]}"
            )
    values = list(ks) if isinstance(ks, Iterable) else []
    if not values or not all(isinstance(k, int | np.integer) and k >= 1 for k in values):
        raise ValueError(
            f"ks must be a list of whole numbers of at least 1, such as [1, 5]; given {ks!r}"
        )

    # Sorted by class, so that the samples of a block's classes are one range of columns.
    query_order = torch.argsort(y, stable=True)
    order = query_order if gallery is None else torch.argsort(gallery_y, stable=True)
    y, gallery_y = y[query_order], gallery_y[order]
    classes, bounds = y.cpu().numpy(), gallery_y.cpu().numpy()
    hits = torch.zeros(len(y), len(values), dtype=torch.bool, device=x.device)
    limits = torch.tensor(values, device=x.device)
    with tensors.exact_products(x.device):
        for rows in tensors.blocks(len(y)):
            queries = tensors.unit_rows(x[query_order[rows]])
            first = int(np.searchsorted(bounds, classes[rows.start], side="left"))
            last = int(np.searchsorted(bounds, classes[rows.stop - 1], side="right"))
            nearest = queries.new_full((len(queries),), -torch.inf)
            position = torch.zeros_like(y[rows])
            for columns in tensors.blocks(last, start=first):
                similarity = queries @ tensors.unit_rows(gallery_x[order[columns]]).t()
                similarity.masked_fill_(y[rows, None] != gallery_y[columns], -torch.inf)
                if gallery is None:
                    similarity.diagonal(rows.start - columns.start).fill_(-torch.inf)
                best, index = similarity.max(dim=1)
                position = torch.where(best > nearest, order[columns][index], position)
                nearest = torch.maximum(nearest, best)
            before = torch.zeros_like(y[rows])
            for columns in tensors.blocks(len(gallery_y)):
                similarity = queries @ tensors.unit_rows(gallery_x[order[columns]]).t()
                if columns.start < last and columns.stop > first:
                    similarity.masked_fill_(y[rows, None] == gallery_y[columns], -torch.inf)
                before += (similarity > nearest[:, None]).sum(dim=1, dtype=torch.int32)
                tied = similarity == nearest[:, None]
                if bool(tied.any()):
                    before += (tied & (order[columns] < position[:, None])).sum(dim=1)
            has_partner = nearest.isfinite()[:, None]
            hits[query_order[rows]] = has_partner & (before[:, None] < limits)
    return hits.cpu()


def instance_hits(views: Tensor | np.ndarray, images: Tensor | np.ndarray) -> Tensor:
    """Whether the nearest image of each view is its own, (N,) bool: R@1 of views.

    It needs no labels. A random neighbor gives 1/N, and so do constant features.

    Args:
        views: (N, d) features of a random view of each image.
        images: (N, d) features of the images.

    Raises:
        ValueError: the shapes do not fit; the message names the argument.
    """
    itself = torch.arange(len(images))
    return recall_hits(views, itself, (1,), gallery=(images, itself))[:, 0]
