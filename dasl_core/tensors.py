"""Argument checks, precision and tiling, for losses, regularizers and metrics."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Entries of a tile of similarities: 16 MiB in float32 for any number of samples. Larger tiles are slower on a
# CPU, because the allocator returns them to the system and every tile causes page faults.
TILE_ENTRIES = 1 << 22
# Limits of the largest entry of rows that can be squared and summed in float32.
SQUARES_VANISH, SQUARES_OVERFLOW = 1e-10, 1e15


class NotFiniteError(ValueError):
    """Features contain NaN or infinities, which no metric can rank."""


def full_precision(x: Tensor) -> Tensor:
    """Convert half and bfloat16 to float32; float32 and float64 are unchanged."""
    return x if x.dtype == torch.float64 else x.float()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, so that the host does not wait for the GPU."""
    # A copy to a CPU must wait, because the host reads the values at once.
    return pinned(x, device).to(device, non_blocking=device.type == "cuda")


def pinned(x: Tensor, device: torch.device) -> Tensor:
    """Copy to pinned memory for an asynchronous copy to a GPU; return `x` itself for another device.

    Torch reuses the memory after the copies to the GPU.
    """
    if device.type != "cuda" or x.device.type != "cpu":
        return x
    with torch.cuda.device(device):  # otherwise a thread would use the first GPU
        return x.pin_memory()


class HostCopy:
    """A copy of a tensor on its way to the host, which only `read` waits for; a CPU's is the tensor itself."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._arrived = tensor, None
        if tensor.is_cuda:
            with torch.cuda.device(tensor.device):
                self._tensor = tensor.to("cpu", non_blocking=True)
                self._arrived = torch.cuda.current_stream().record_event()

    def read(self) -> Tensor:
        """Return the tensor on the host, once the device has computed it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError that names the argument unless ``value`` is one of ``choices``."""
    if value not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {expected}; given {value!r}")


def check_matrix(name: str, value: object, shape: str) -> None:
    """Raise a ValueError that names the argument unless ``value`` is a 2-D floating-point tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor of shape {shape}; given {type(value).__name__}")
    if value.dim() != 2:
        raise ValueError(f"{name} must have the shape {shape}; given {tuple(value.shape)}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must hold real floating-point numbers; given {value.dtype}")


def check_two_views(name: str, value: Tensor) -> None:
    """Raise a ValueError unless the shape is (2, B, h)."""
    if value.dim() != 3 or value.shape[0] != 2:
        raise ValueError(
            f"{name} must have the shape (2, B, h), two views of each image; given "
            f"{tuple(value.shape)}"
        )


def check_crops(target_name: str, targets: Tensor, name: str, outputs: Tensor) -> None:
    """Raise a ValueError unless the shapes are (T, B, K) and (V, B, K): T global views of V >= 2 views."""
    if targets.dim() != 3 or outputs.dim() != 3 or targets.shape[1:] != outputs.shape[1:]:
        raise ValueError(
            f"{target_name} and {name} must have the shapes (T, B, K) and (V, B, K); given "
            f"{tuple(targets.shape)} and {tuple(outputs.shape)}"
        )
    if not 0 < len(targets) <= len(outputs) or len(outputs) < 2:
        raise ValueError(
            f"{name} must be of at least 2 views, and of all views of {target_name}; given "
            f"{len(outputs)} and {len(targets)}"
        )


def check_temperature(value: float) -> None:
    """Raise a ValueError unless the temperature is finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"temperature must be a finite number above 0; given {value}")


def feature_matrix(value: Tensor | np.ndarray, name: str, min_rows: int = 1) -> Tensor:
    """Convert to an (N, d) feature matrix in float32 or float64, detached.

    float32 and float64 are not copied; other types are copied to float32.

    Raises:
        NotFiniteError: an entry is NaN or infinite.
        ValueError: the value is not such a matrix, or has fewer than `min_rows` rows.
    """
    x = _tensor(value, name).detach()
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"{name} must have the shape (N, d); given {tuple(x.shape)}")
    if x.shape[0] < min_rows:
        raise ValueError(f"{name} must have at least {min_rows} rows; given {x.shape[0]}")
    if x.is_complex():
        raise ValueError(f"{name} must hold real numbers; given {x.dtype}")
    x = full_precision(x)
    finite = torch.ones((), dtype=torch.bool, device=x.device)
    for rows in tiles(*x.shape):  # isfinite makes copies
        finite &= torch.isfinite(x[rows]).all()
    if not bool(finite):
        raise NotFiniteError(f"{name} holds NaN or infinite numbers: the features are not usable")
    return x


def label_vector(value: Tensor | np.ndarray, name: str, rows: int, device: torch.device) -> Tensor:
    """Convert to an (N,) vector of integer labels on `device`; a ValueError if it is something else."""
    y = _tensor(value, name)
    if y.shape != (rows,):
        raise ValueError(
            f"{name} must have the shape ({rows},), one label a row; given {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{name} must be integers; given {y.dtype}")
    return y.to(device=device, dtype=torch.int64)


def check_same_width(train_x: Tensor, test_x: Tensor) -> None:
    """Raise a ValueError unless the features of training and test samples have the same width."""
    if test_x.shape[1] != train_x.shape[1]:
        raise ValueError(
            f"test_x must have the {train_x.shape[1]} columns of train_x; given {test_x.shape[1]}"
        )


def unit_rows(x: Tensor) -> Tensor:
    """Scale each row to length 1, without overflow or underflow; a row of zeros stays zero."""
    largest = x.abs().amax(dim=1, keepdim=True)  # several times faster than the norm of order inf
    # Squares of entries far from 1 overflow or underflow; usual rows are divided by 1.
    usual = (largest == 0) | ((largest > SQUARES_VANISH) & (largest < SQUARES_OVERFLOW))
    return F.normalize(x / largest.masked_fill(usual, 1), dim=1)


def mean_and_std(x: Tensor, transform: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation (d,), in float64, of the columns of (N, d) transformed rows."""
    count, width = x.shape
    mean, squares = torch.zeros(2, width, dtype=torch.float64, device=x.device)
    for rows in tiles(count, width):
        mean += transform(x[rows]).sum(dim=0, dtype=torch.float64) / count
    # A second pass: the mean of squares less the square of the mean would cancel close to a collapse.
    for rows in tiles(count, width):
        squares += (transform(x[rows]) - mean).square().sum(dim=0)
    return mean, (squares / count).sqrt()


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Compute squared distances (n, m), 0 to 4 up to rounding, of rows (n, d) and (m, d) from `unit_rows`."""
    # Lengths are 1, or 0 for a row of zeros.
    lengths, others = (torch.linalg.vector_norm(rows, dim=1).round() for rows in (first, second))
    squared = torch.addmm(others, first, second.t(), alpha=-2)
    return squared.add_(lengths[:, None])


def check_whole_number(value: object, name: str) -> None:
    """Raise a ValueError that names the argument unless it is a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be at least 1, a whole number; given {value!r}")


def check_number(value: object, name: str, *, zero: bool = False) -> None:
    """Raise a ValueError that names the argument unless it is a finite number above 0 or, with `zero`, at least 0."""
    if (
        not isinstance(value, int | float | np.integer | np.floating)
        or not 0 <= value < math.inf
        or (value == 0 and not zero)
    ):
        bound = "at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be {bound}, a finite number; given {value!r}")


def tiles(rows: int, columns: int, entries: int | None = None) -> Iterator[slice]:
    """Yield slices of `rows` such that (slice, columns) has at most `entries`, or `TILE_ENTRIES`."""
    step = max(1, (entries or TILE_ENTRIES) // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def blocks(stop: int, start: int = 0) -> Iterator[slice]:
    """Yield slices from `start` to `stop` of the side length of a square tile."""
    side = math.isqrt(TILE_ENTRIES)
    for first in range(start, stop, side):
        yield slice(first, min(first + side, stop))


def pair_tiles(rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield square tiles that cover every pair i < j of `rows` once; diagonal tiles include i >= j."""
    for first in blocks(rows):
        for second in blocks(rows):
            if second.start >= first.start:
                yield first, second


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Context manager for products in full precision: without autocast, and without TF32 on a GPU.

    A training run may enable both, which would change which of two neighbors is nearer.
    """
    with _product_precision("highest"), torch.autocast(device.type, enabled=False):
        yield


def tf32_products(device: torch.device) -> AbstractContextManager[None]:
    """Context manager for float32 products with factors of 11 significant bits (TF32) on a GPU."""
    return _product_precision("high") if device.type == "cuda" else nullcontext()


@contextmanager
def _product_precision(precision: str) -> Iterator[None]:
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
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
        return torch.from_numpy(value)  # no copy: a second large bank may not fit into memory
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"{name} must be a torch tensor or a numeric NumPy array; given {kind}")
