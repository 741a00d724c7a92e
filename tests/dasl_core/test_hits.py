"""Paired comparisons of evaluations."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from dasl_core.hits import Hits, compare

bits = st.lists(st.booleans(), min_size=1, max_size=60)


@given(right=bits)
def test_packed_hits_are_restored(right: list[bool]) -> None:
    packed = Hits.pack(right)
    assert (packed.images, packed.bits.bit_count()) == (len(right), sum(right))
    assert Hits.decode(packed.encode()) == packed
    assert [bool(packed.bits >> image & 1) for image in range(len(right))] == right


@given(gained=st.integers(0, 40), lost=st.integers(0, 40), both=st.integers(0, 5))
def test_two_evaluations_are_compared_by_the_exact_test(gained: int, lost: int, both: int) -> None:
    one = Hits.pack([True] * gained + [False] * lost + [True] * both)
    other = Hits.pack([False] * gained + [True] * lost + [True] * both)
    differs = gained != lost and binomtest(gained, gained + lost).pvalue < 0.05
    expected = 0 if not differs else 1 if gained > lost else -1
    assert compare(one, [other]) == expected
    assert compare(other, [one]) == -expected


def test_many_differing_images_are_compared_by_the_normal_distribution() -> None:
    for gained, expected in ((1043, 0), (1045, 1)):
        one = Hits.pack([True] * gained + [False] * (2000 - gained))
        other = Hits.pack([False] * gained + [True] * (2000 - gained))
        pvalue = 2 * norm.sf((2 * gained - 2000) / 2000**0.5)
        assert compare(one, [other]) == expected == int(pvalue < 0.05)


def test_mean_of_several_is_compared_image_by_image() -> None:
    random = np.random.default_rng(0)
    signs = set()
    for level in (0.3, 0.5, 0.7):
        one = random.random(80) < level
        others = random.random((4, 80)) < 0.5
        difference = one - others.mean(axis=0)
        z = difference.sum() / (80**0.5 * difference.std())
        sign = 0 if abs(z) <= 1.96 else int(np.sign(z))
        packed = [Hits.pack(other.tolist()) for other in others]
        assert compare(Hits.pack(one.tolist()), packed) == sign
        signs.add(sign)
    assert signs == {-1, 0, 1}
