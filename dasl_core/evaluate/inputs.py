"""What every measure accepts, checked once: feature matrices and label vectors; and their blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Entries of one tile of similarities: 16 MiB in float32, whatever the number of samples. Larger ones
# are slower on a CPU: the allocator hands them back to the system, and every tile faults its pages in.
TILE_ENTRIES = 1 << 22
# Rows whose largest entry lies between can be squared and added up in float32.
SQUARES_VANISH, SQUARES_OVERFLOW = 1e-10, 1e15


class NotFiniteError(ValueError):
    """Features with NaN or infinities in them, which no measure can rank."""


def features(value: Tensor | np.ndarray, name: str, min_rows: int = 1) -> Tensor:
    """An (N, d) feature matrix in float32 or float64, detached; ValueError when it is no such thing.

    float32 and float64 are used where they lie; other types are copied to float32.
    """
    x = _tensor(value, name).detach()
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"{name} must have the shape (N, d); given {tuple(x.shape)}")
    if x.shape[0] < min_rows:
        raise ValueError(f"{name} must have at least {min_rows} rows; given {x.shape[0]}")
    if x.is_complex():
        raise ValueError(f"{name} must hold real numbers; given {x.dtype}")
    x = x if x.dtype == torch.float64 else x.float()
    finite = torch.ones((), dtype=torch.bool, device=x.device)
    for rows in tiles(*x.shape):  # isfinite makes copies
        finite &= torch.isfinite(x[rows]).all()
    if not bool(finite):
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


def same_width(train_x: Tensor, test_x: Tensor) -> None:
    """ValueError when the features of training and test samples differ in their columns."""
    if test_x.shape[1] != train_x.shape[1]:
        raise ValueError(
            f"test_x must have as many columns as train_x, {train_x.shape[1]}; "
            f"given {test_x.shape[1]}"
        )


def unit_rows(x: Tensor) -> Tensor:
    """Rows at length 1, however long or short they are; a zero row stays zero."""
    largest = x.abs().amax(dim=1, keepdim=True)  # several times as fast as the norm of order inf
    # Squares of what lies far from 1 overflow or vanish; rows of a usual size are divided by 1.
    usual = (largest == 0) | ((largest > SQUARES_VANISH) & (largest < SQUARES_OVERFLOW))
    return F.normalize(x / largest.masked_fill(usual, 1), dim=1)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """(n, m) of rows from `unit_rows`, (n, d) and (m, d); up to rounding from 0 to 4."""
    # Of length 1, or 0 of a zero row.
    lengths, others = (torch.linalg.vector_norm(rows, dim=1).round() for rows in (first, second))
    squared = torch.addmm(others, first, second.t(), alpha=-2)
    return squared.add_(lengths[:, None])


def whole_number(value: object, name: str, least: int = 1) -> None:
    """ValueError when an argument is no whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be at least {least}, a whole number; given {value!r}")


def number(value: object, name: str, *, zero: bool = False) -> None:
    """ValueError when an argument is no finite number above 0, or, with `zero`, of at least 0."""
    if (
        not isinstance(value, int | float | np.integer | np.floating)
        or not 0 <= value < math.inf
        or (value == 0 and not zero)
    ):
        bound = "at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be {bound}, a finite number; given {value!r}")


def tiles(rows: int, columns: int) -> Iterator[slice]:
    """Slices of `rows` such that (slice, columns) has at most `TILE_ENTRIES` entries."""
    step = max(1, TILE_ENTRIES // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def blocks(stop: int, start: int = 0) -> Iterator[slice]:
    """Slices from `start` to `stop`, as long as a square tile's side."""
    side = math.isqrt(TILE_ENTRIES)
    for first in range(start, stop, side):
        yield slice(first, min(first + side, stop))


def pair_tiles(rows: int) -> Iterator[tuple[slice, slice]]:
    """Square tiles that cover every pair i < j of `rows` once; those on the diagonal hold i >= j too."""
    for first in blocks(rows):
        for second in blocks(rows):
            if second.start >= first.start:
                yield first, second


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Products in the precision of their factors: without autocast, and without TF32 on a GPU.

    A training run may allow both, and they would change which of two neighbours is nearer.
    """
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _tensor(value: Tensor | np.ndarray, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        flags = value.flags
        if not (flags.writeable and flags.c_contiguous and value.dtype.isnative):
            value = value.astype(value.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(value)  # no copy: a second one of a large bank may not fit
    given = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"{name} must be a torch tensor or a numeric NumPy array; given {given}")
