"""Paired comparisons of evaluations: which held-out images are right, one bit each.

Two evaluations of the same images differ by the images that only one of them gets right, which is a sharper
test than comparing two accuracies, whose errors are far from independent. Imports only the standard library.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

# Two-sided 95 % quantile of the normal distribution.
Z95 = 1.96
# Up to this number of images that only one evaluation gets right, the binomial distribution is summed.
_EXACT = 1000


class Hits(NamedTuple):
    """Whether each image is right: bit i of `bits` for image i."""

    images: int
    bits: int

    @classmethod
    def pack(cls, right: Iterable[bool]) -> Self:
        """Pack one boolean for each image."""
        digits = "".join("1" if each else "0" for each in right)
        return cls(len(digits), int(digits[::-1] or "0", 2))

    def encode(self) -> str:
        """Return the text that `decode` reads."""
        return f"{self.images}:{self.bits:x}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the result of `encode`."""
        images, _, bits = text.partition(":")
        return cls(int(images), int(bits, 16))


def compare(one: Hits, others: Sequence[Hits]) -> int:
    """Return 1 or -1 if an evaluation gets more, or fewer, images right than the mean of others; 0 for chance.

    At 95 %, two-sided: with one other, McNemar's exact test; with several, the paired z-test of the images.

    Args:
        others: at least one, of the same images.
    """
    assert {other.images for other in others} == {one.images}, "the images are the same"
    if len(others) == 1:
        gained = (one.bits & ~others[0].bits).bit_count()
        lost = (others[0].bits & ~one.bits).bit_count()
        if (trials := gained + lost) <= _EXACT:
            # The probability of at most as many heads among fair coins.
            ways = sum(math.comb(trials, heads) for heads in range(min(gained, lost) + 1))
            is_chance = 2 * (ways / 2**trials) >= 0.05
        else:
            is_chance = abs(gained - lost) <= Z95 * math.sqrt(trials)
        return 0 if is_chance else (1 if gained > lost else -1)
    share = 1 / len(others)
    total = one.bits.bit_count() - share * sum(other.bits.bit_count() for other in others)
    # The sum of the squared differences of each image, expanded.
    common = sum((one.bits & other.bits).bit_count() for other in others)
    among = sum((a.bits & b.bits).bit_count() for a in others for b in others)
    squares = one.bits.bit_count() - 2 * share * common + share * share * among
    if abs(total) <= Z95 * math.sqrt(max(0.0, squares - total * total / one.images)):
        return 0
    return 1 if total > 0 else -1
