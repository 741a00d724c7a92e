"""What every measure accepts, checked once: feature matrices and label vectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Entries of one tile of similarities: 64 MiB in float32, whatever the number of samples.
TILE_ENTRIES = 1 << 24


class NotFiniteError(ValueError):
    """Features with NaN or infinities in them, which no measure can rank."""


def features(value: Tensor | np.ndarray, name: str, min_rows: int = 1) -> Tensor:
    """An (N, d) feature matrix in float32 or float64, detached; ValueError when it is no such thing."""
    x = _tensor(value, name).detach()
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"{name} must have the shape (N, d); given {tuple(x.shape)}")
    if x.shape[0] < min_rows:
        raise ValueError(f"{name} must have at least {min_rows} rows; given {x.shape[0]}")
    if x.is_complex():
        raise ValueError(f"{name} must hold real numbers; given {x.dtype}")
    x = x if x.dtype == torch.float64 else x.float()
    if not bool(torch.isfinite(x).all()):
        raise NotFiniteError(f"{name} holds NaN or infinite numbers: the features are not usable")
    return x


def labels(value: Tensor | np.ndarray, name: str, rows: int, device: torch.device) -> Tensor:
    """An (N,) vector of integer labels on `device`; ValueError when it is no such thing."""
    y = _tensor(value, name)
    if y.shape != (rows,):
        raise ValueError(
            f"{name} must have the shape ({rows},), one label a row; given {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{name} must be integers; given {y.dtype}")
    return y.to(device=device, dtype=torch.int64)


def unit_rows(x: Tensor) -> Tensor:
    """Rows at length 1; a zero row stays zero."""
    return F.normalize(x, dim=1)


def tiles(rows: int, columns: int) -> Iterator[slice]:
    """Slices of `rows` such that (slice, columns) has at most `TILE_ENTRIES` entries."""
    step = max(1, TILE_ENTRIES // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _tensor(value: Tensor | np.ndarray, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.tensor(value)
    given = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"{name} must be a torch tensor or a numeric NumPy array; given {given}")
