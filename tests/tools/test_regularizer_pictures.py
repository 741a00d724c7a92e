"""The pictures of docs/regularizers.md show what the regularizers compute."""

import math
from pathlib import Path

import pytest
import torch

from dasl_core.regularizers import SphericalEmbeddingConstraint
from tools import regularizer_pictures
from tools.regularizer_pictures import dar_of, descend

PICTURES = {"dar-distances.svg", "sec-norms.svg", "regularizers-measured.svg"}


def on_circle(*degrees: float) -> torch.Tensor:
    radians = torch.tensor(degrees) * math.pi / 180
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def test_dar_is_zero_for_equal_distances_and_at_a_collapse_only() -> None:
    assert float(dar_of(on_circle(90, 210, 330))) == pytest.approx(0, abs=1e-6)
    assert float(dar_of(on_circle(90, 90, 90))) == pytest.approx(0, abs=1e-6)
    # The distances are 2 sin(27.5°), 2 and 2 cos(27.5°); R is the mean of their three differences.
    assert float(dar_of(on_circle(95, 150, 330))) == pytest.approx(
        (2 - 2 * math.sin(27.5 * math.pi / 180)) * 2 / 3, abs=1e-5
    )


def test_descent_on_sec_makes_norms_equal() -> None:
    before = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    after = descend(before, SphericalEmbeddingConstraint(), steps=60, rate=2.0)
    assert float(after.norm(dim=1).std()) < 0.05 * float(before.norm(dim=1).std())


def test_pictures_are_committed_and_drawn_alike_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = {path.name for path in regularizer_pictures.IMAGES.iterdir()}
    drawn = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(regularizer_pictures, "IMAGES", tmp_path / name)
        regularizer_pictures.main()
        drawn.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == PICTURES <= committed
