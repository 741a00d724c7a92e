"""NT-Xent against the formula of the paper, term by term."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.methods import nt_xent
from tests.support.setting_effects import HEAD, SettingEffects, effects


def naive(embeddings: Tensor, temperature: float) -> float:
    """Compute eq. 1 of Chen et al. 2020 with loops: the mean over all 2N anchors."""
    first, second = embeddings.tolist()
    z = first + second
    count = len(first)

    def similarity(a: list[float], b: list[float]) -> float:
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))

    total = 0.0
    for i in range(2 * count):
        j = (i + count) % (2 * count)
        others = sum(
            math.exp(similarity(z[i], z[k]) / temperature) for k in range(2 * count) if k != i
        )
        total -= math.log(math.exp(similarity(z[i], z[j]) / temperature) / others)
    return total / (2 * count)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 6), st.integers(1, 5), st.floats(0.05, 5), st.integers(0, 2**31))
def test_loss_equals_formula_of_the_paper(
    samples: int, width: int, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(2, samples, width, generator=generator, dtype=torch.float64)
    assert nt_xent(embeddings, temperature).item() == pytest.approx(
        naive(embeddings, temperature), rel=1e-9, abs=1e-9
    )


def test_gradient_equals_finite_differences() -> None:
    embeddings = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: nt_xent(e, 0.3), embeddings)


SETTING_EFFECTS = {
    "simclr": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("loss", temperature=0.7)
        | effects("network", last_batch_norm=True),
        lambda s, _, history: nt_xent(history[-1][1]["embeddings"], s.temperature),
    )
}
