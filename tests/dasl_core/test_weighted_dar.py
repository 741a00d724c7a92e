"""DAR as a module: the term that a job adds to its loss, with the same defaults."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dasl_core.distributed import all_ranks, group_rank, group_size
from dasl_core.regularizers import DifferenceAlignment, difference_alignment
from dasl_core.seeds import stream
from dasl_core.spec import DAR, DatasetFacts, JobSpec, resolve
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import tiny_spec

LABELS = torch.tensor([4, 9, 2, 2, 7, 0])


def embeddings() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)


def test_defaults_are_those_of_a_job() -> None:
    spec = JobSpec.model_validate(tiny_spec(dar={}))
    job = resolve(spec, DatasetFacts(num_images=64, num_classes=3, median_size=20)).dar
    assert job is not None
    function, module = (
        {
            name: parameter.default
            for name, parameter in inspect.signature(each).parameters.items()
            if name in DAR.model_fields.keys() - {"labels", "weight"}
        }
        for each in (difference_alignment, DifferenceAlignment)
    )
    assert module.keys() == DAR.model_fields.keys() - {"labels", "clusters", "weight", "share"}
    assert module == {name: DAR.model_fields[name].default for name in module}
    assert function == {name: module[name] for name in module if name != "schedule"}
    assert job.estimator == "full"


@pytest.mark.parametrize(
    "settings", [{}, {"estimator": "chain"}, {"difference": "signed", "norm": "l2"}]
)
def test_term_is_weighted_dar_of_all_views(settings: dict[str, Any]) -> None:
    module = DifferenceAlignment(0.3, seed=3, **settings)
    expected = difference_alignment(
        embeddings().flatten(0, 1),
        torch.cat([LABELS, LABELS]),
        generator=stream(3, "dar", 8),
        **settings,
    )
    assert module(embeddings(), LABELS, 8).item() == 0.3 * expected.item()
    is_random = module(embeddings(), LABELS, 9).item() != module(embeddings(), LABELS, 8).item()
    assert is_random == bool(settings)
    assert not module.state_dict()


def test_schedule_follows_progress() -> None:
    module = DifferenceAlignment(0.8, schedule="linear")
    whole = module(embeddings(), LABELS, 0, progress=1.0)
    assert module(embeddings(), LABELS, 0, progress=0.25).item() == pytest.approx(0.25 * whole)
    with pytest.raises(ValueError, match="progress is needed for the schedule 'linear'"):
        module(embeddings(), LABELS, 0)


def term_of_share() -> tuple[float, np.ndarray]:
    """Term and gradient as in DDP, with the batch over all ranks."""
    group = all_ranks()
    size, rank = group_size(group), group_rank(group)
    own = embeddings().chunk(size, dim=1)[rank].clone().requires_grad_()
    term = DifferenceAlignment(0.5)(own, LABELS.chunk(size)[rank], 4, group=group)
    (gradient,) = torch.autograd.grad(term / size, own)
    return term.item(), gradient.numpy()


def test_group_shares_the_batch(pool: GlooPool) -> None:
    term, gradient = term_of_share()
    results = pool.call(3, term_of_share)
    assert [value for value, _ in results] == pytest.approx([term] * 3, abs=1e-14)
    together = np.concatenate([own for _, own in results], axis=1)
    np.testing.assert_allclose(together, gradient, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight must be a finite number"),
        ({"difference": "cosine"}, "difference must be one of"),
        ({"schedule": "sine"}, "schedule must be one of"),
    ],
)
def test_invalid_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DifferenceAlignment(**({"weight": 0.5} | arguments))


def test_views_must_be_stacked() -> None:
    with pytest.raises(ValueError, match=r"embeddings must have the shape \(V, B, h\)"):
        DifferenceAlignment(0.5)(embeddings().flatten(0, 1), LABELS.repeat(2), 0)
