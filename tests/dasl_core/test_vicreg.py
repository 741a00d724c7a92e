"""VICReg's loss against lightly's and on known embeddings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import VICRegLoss

from dasl_core.methods.vicreg import vicreg_loss
from tests.support.methods import unequal_coordinates
from tests.support.setting_effects import HEAD, SettingEffects, effects


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 9), st.integers(2, 9), st.tuples(*[st.floats(0, 30)] * 3), st.integers(0, 2**31)
)
def test_equals_lightlys_value_and_gradient(
    samples: int, width: int, weights: tuple[float, float, float], seed: int
) -> None:
    z = unequal_coordinates(samples, width, seed)
    ours, reference = (z.clone().requires_grad_() for _ in range(2))
    loss = vicreg_loss(ours, *weights)
    expected = VICRegLoss(*weights)(reference[0], reference[1])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-9, atol=1e-9)


def test_terms_equal_the_paper_on_known_embeddings() -> None:
    """Check the terms on embeddings for which each can be computed by hand."""
    collapsed = torch.ones(2, 6, 4, dtype=torch.float64)
    # Variance: at zero variance, the root of epsilon is 0.01.
    assert vicreg_loss(collapsed, 25, 25, 1).item() == pytest.approx(25 * 0.99)
    spread = unequal_coordinates(50, 1)[:1] * 100
    assert vicreg_loss(spread.repeat(2, 1, 1), 25, 25, 1).item() == pytest.approx(0, abs=1e-5)
    assert vicreg_loss(torch.cat([spread, spread + 2]), 25, 25, 1).item() == pytest.approx(100)
    twice = spread.repeat(2, 1, 2)  # two equal coordinates
    variance = spread.var().item()
    assert vicreg_loss(twice, 0, 0, 1).item() == pytest.approx(2 * variance**2)


def test_loss_refuses_one_sample() -> None:
    with pytest.raises(ValueError, match="embeddings must be of at least 2 samples"):
        vicreg_loss(torch.ones(2, 1, 3), 25, 25, 1)


SETTING_EFFECTS = {
    "vicreg": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("loss", invariance=3.0, variance=5.0, covariance=7.0),
        lambda s, _, history: vicreg_loss(
            history[-1][1]["embeddings"], s.invariance, s.variance, s.covariance
        ),
    )
}
