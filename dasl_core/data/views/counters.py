"""Counter-based random numbers.

A number is a hash of a key, the position of an image and the number of the draw. So a rank draws only
for its own images, and neither the number of ranks nor what else is drawn changes what an image gets.
The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import numpy as np
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio, odd
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_BITS = 24  # of a float32's significand


def uniform(key: int, positions: Tensor, draws: int) -> Tensor:
    """Draw (B, draws) float32 numbers, uniform in [0, 1).

    Args:
        key: of 63 bits, from `derive_seed`.
        positions: (B,) int64, at least 0, of the images.
        draws: numbers for each image. The first ones do not depend on how many follow.
    """
    seeds = _mix(np.uint64(key) + _steps(positions.numpy()))
    numbers = _mix(seeds[:, None] + _steps(np.arange(draws)))
    high = (numbers >> np.uint64(64 - _BITS)).astype(np.float32)
    return torch.from_numpy(high * np.float32(2.0**-_BITS))


def _steps(counters: np.ndarray) -> np.ndarray:
    """Return the offset of each counter's state from the start, modulo 2**64."""
    return (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA


def _mix(state: np.ndarray) -> np.ndarray:
    """Hash each state."""
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        state = (state ^ (state >> shift)) * factor
    mixed: np.ndarray = state ^ (state >> _SHIFTS[2])
    return mixed
