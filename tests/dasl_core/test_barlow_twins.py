"""Barlow Twins' loss against lightly's and on known correlations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import BarlowTwinsLoss

from dasl_core.methods.barlow_twins import barlow_twins_loss
from tests.support.methods import unequal_coordinates
from tests.support.setting_effects import HEAD, SettingEffects, effects


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(2, 9), st.floats(0, 30), st.integers(0, 2**31))
def test_equals_lightlys_value_and_gradient(
    samples: int, width: int, redundancy: float, seed: int
) -> None:
    z = unequal_coordinates(samples, width, seed)
    ours, reference = (z.clone().requires_grad_() for _ in range(2))
    loss = barlow_twins_loss(ours, redundancy)
    expected = BarlowTwinsLoss(redundancy)(reference[0], reference[1])
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-9, atol=1e-9)


def test_terms_equal_the_paper_on_known_correlations() -> None:
    """Check the terms on embeddings with known correlations."""
    orthogonal = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64) * 1e4
    assert barlow_twins_loss(torch.stack([orthogonal, orthogonal + 5]), 3).item() == pytest.approx(
        0
    )
    assert barlow_twins_loss(torch.stack([orthogonal, -orthogonal]), 3).item() == pytest.approx(8)
    same = orthogonal[:, :1].repeat(2, 1, 3)  # three equal coordinates: 6 correlations of 1
    assert barlow_twins_loss(same, 3).item() == pytest.approx(3 * 6)


@pytest.mark.parametrize("shape", [(8, 3), (1, 4, 3), (3, 4, 3)])
def test_loss_refuses_other_than_two_views(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="embeddings must have the shape"):
        barlow_twins_loss(torch.ones(shape), 0.0051)


def test_loss_refuses_one_sample() -> None:
    with pytest.raises(ValueError, match="embeddings must be of at least 2 samples"):
        barlow_twins_loss(torch.ones(2, 1, 3), 0.0051)


SETTING_EFFECTS = {
    "barlow_twins": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("loss", redundancy=0.5, loss_scale=2.0),
        lambda s, _, history: (
            s.loss_scale * barlow_twins_loss(history[-1][1]["embeddings"], s.redundancy)
        ),
    )
}
