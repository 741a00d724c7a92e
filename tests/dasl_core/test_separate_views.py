"""`method.separate_views`: batch statistics of each view alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import build_method
from tests.dasl_core.test_distributed import TOLERANCE, one_step
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import resolved


def spec_of(index: DatasetIndex, method: str, workers: int = 1) -> Any:
    return resolved(
        index,
        method={"name": method, "separate_views": True},
        train={"precision": "fp64", "optimizer": {"name": "sgd", "lr": 0.05}},
        resources={"workers": workers},
    )


def test_each_view_is_normalized_by_its_own_statistics(pictures: DatasetIndex) -> None:
    method = build_method(spec_of(pictures, "byol")).double()
    views = list(torch.randn(2, 8, 3, 16, 16, dtype=torch.float64))
    with torch.no_grad():
        both = method(views)
        for number, view in enumerate(views):
            alone = method([view])
            for name, outputs in both.items():
                torch.testing.assert_close(outputs[number], alone[name][0])
        method.separate_views = False
        assert not torch.allclose(method(views)["embeddings"], both["embeddings"])


@pytest.mark.parametrize("method", ["moco_v3", "vicreg"])
def test_separate_views_on_two_ranks_have_gradients_of_one(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str
) -> None:
    spec = spec_of(pictures, method).model_dump(mode="json")
    terms, gradients = one_step(spec, pictures, cache, tmp_path)
    spec = spec_of(pictures, method, workers=2).model_dump(mode="json")
    for together, theirs in pool.call(2, one_step, spec, pictures, cache, tmp_path):
        assert together == pytest.approx(terms, abs=TOLERANCE)
        assert max(abs(theirs[name] - gradients[name]).max() for name in gradients) < TOLERANCE
