"""Resuming on several ranks: state of each rank (random streams, the bank for clusters) and shared state.

The runs use two ranks and a network with stochastic depth, which draws from its rank's stream.
"""

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.interruption import Interruption
from dasl_core.train.progress import Progress
from dasl_core.train.reporter import NullReporter
from dasl_core.train.serialization import load_state
from dasl_core.train.validation import Validator
from dasl_core.vocabulary import Desired, TrainingOutcome
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import Recorder, assert_same, open_trainer, resolved, run

STEPS, TOTAL, IMAGES = 3, 9, 24  # 24 images train in batches of 8 for 3 epochs
CLUSTERS = 3


def spec_of(index: DatasetIndex, workers: int, **changes: Any) -> dict[str, Any]:
    """A spec with k-means clusters, recomputed after every epoch, as JSON."""
    settings: dict[str, Any] = {
        "dar": {"weight": 0.5, "labels": "cluster", "clusters": {"k": CLUSTERS}},
        "train": {"precision": "fp64", "optimizer": {"name": "sgd", "lr": 0.05}},
        "resources": {"workers": workers},
    }
    return resolved(index, **(settings | changes)).model_dump(mode="json")


def recorded(
    spec: dict[str, Any],
    index: DatasetIndex,
    cache: Path,
    kept: Path,
    stop: int | None = None,
    resume: Path | None = None,
    stop_in_evaluation_at: int | None = None,
) -> tuple[TrainingOutcome, list[float]]:
    """Run with checkpoints in `kept`; return the outcome and, on rank 0, the losses.

    `stop`: number of steps of this process before it stops.
    `stop_in_evaluation_at`: the step after which it stops in the evaluation.
    """

    def desired(started: int) -> Desired:
        return "cancel" if started == stop else "run"

    signs_of_life = Counter[int]()  # by the step after which rank 0 gives them

    def at_work(call: int) -> Desired:
        assert reporter is not None
        step = len(reporter.points)
        signs_of_life[step] += 1
        # The first ones are of the clustering. As with the service, the request stays.
        return "pause" if step == stop_in_evaluation_at and signs_of_life[step] >= 4 else "run"

    first = not dist.is_initialized() or dist.get_rank() == 0
    reporter = Recorder(kept, desired, at_work=at_work) if first else None
    torch.rand(7 * (1 + dist.get_rank() if dist.is_initialized() else 1))  # stands for other draws
    with patch.object(Validator, "publish_plots", lambda *_: None):
        outcome = run(ResolvedJobSpec.model_validate(spec), index, cache, reporter, resume)
    return outcome, [] if reporter is None else reporter.curve()


Whole = Callable[[int], tuple[Path, list[float]]]


@pytest.fixture(scope="module")
def whole(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    """From a number of ranks to the checkpoints and losses of an undisturbed run on them."""

    @functools.cache
    def on(ranks: int) -> tuple[Path, list[float]]:
        kept = tmp_path_factory.mktemp("whole")
        outcome, losses = on_ranks(pool, ranks, pictures, cache, kept)
        assert (outcome, len(losses)) == ("succeeded", TOTAL)
        return kept, losses

    return on


def on_ranks(
    pool: GlooPool, ranks: int, index: DatasetIndex, cache: Path, kept: Path, *arguments: Any
) -> tuple[TrainingOutcome, list[float]]:
    """Call `recorded` in this process, or on ranks of the pool; return the first one's result."""
    spec = spec_of(index, ranks)
    if ranks == 1:
        return recorded(spec, index, cache, kept, *arguments)
    first, *_ = pool.call(ranks, recorded, spec, index, cache, kept, *arguments)
    result: tuple[TrainingOutcome, list[float]] = first
    return result


def checked_step(ready: bool) -> bool:
    """Ask to save a checkpoint on rank 0 (`ready`) or on the others only; return what is decided."""
    control = dist.new_group(backend="gloo")
    assert isinstance(control, dist.ProcessGroup)
    mine = ready == (dist.get_rank() == 0)
    return Interruption(NullReporter(), Progress(), control).check_step(save=mine)


def test_clock_of_rank_0_decides_when_to_save(pool: GlooPool) -> None:
    assert pool.call(2, checked_step, True) == [True, True]
    assert pool.call(2, checked_step, False) == [False, False]


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_ranks_resume_bit_exactly_within_epoch(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, together: bool
) -> None:
    """With batch statistics of all ranks, and with those of each."""
    stop, banked = STEPS + 2, 2 * 4  # in the second epoch, with clusters of the first and a bank
    whole, part, rest = (tmp_path / name for name in ("whole", "part", "rest"))
    spec = spec_of(pictures, 2, backbone={"drop_path": 0.5})
    spec["train"]["sync_batch_norm"] = together
    (outcome, losses), _ = pool.call(2, recorded, spec, pictures, cache, whole)
    assert (outcome, len(losses)) == ("succeeded", TOTAL)
    (outcome, before), (other, _) = pool.call(2, recorded, spec, pictures, cache, part, stop)
    assert (outcome, other) == ("cancelled", "cancelled")
    stopped = part / f"step-{stop}"

    # Each rank has state of its own.
    first, second = load_state(stopped)["ranks"]
    assert not torch.equal(first["random"]["cpu"], second["random"]["cpu"])
    assert first["bank"].shape == second["bank"].shape == (banked, 8)
    assert not torch.equal(first["bank"], second["bank"])

    (outcome, after), _ = pool.call(2, recorded, spec, pictures, cache, rest, None, stopped)
    assert outcome == "succeeded"
    assert before + after == losses
    one, two = (load_state(folder / f"step-{TOTAL}") for folder in (whole, rest))
    for name in ("method", "criterion", "clusters", "optimizer", "ranks"):
        assert_same(one[name], two[name], name)
    for name in ("step", "losses", "evaluations"):
        assert one["progress"][name] == two["progress"][name], name


@pytest.mark.slow
def test_two_ranks_leave_an_interrupted_evaluation_to_the_resumed_run(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, whole: Whole
) -> None:
    """The evaluation after the second epoch; rank 0 alone knows of the request."""
    undisturbed, losses = whole(2)
    part, rest = (tmp_path / name for name in ("part", "rest"))
    spec = spec_of(pictures, 2)
    (outcome, before), (other, _) = pool.call(
        2, recorded, spec, pictures, cache, part, None, None, 2 * STEPS
    )
    assert (outcome, other) == ("paused", "paused")
    stopped = part / f"step-{2 * STEPS}"
    (outcome, after), _ = pool.call(2, recorded, spec, pictures, cache, rest, None, stopped)
    assert (outcome, before + after) == ("succeeded", losses)
    one, two = (load_state(folder / f"step-{TOTAL}") for folder in (undisturbed, rest))
    assert one["progress"]["evaluations"] == two["progress"]["evaluations"]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_resumes_on_other_number_of_ranks(
    pool: GlooPool,
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    whole: Whole,
    before: int,
    after: int,
) -> None:
    """Within an epoch, with clusters of the one before and a bank for the next ones."""
    stop = STEPS + 2
    undisturbed, losses = whole(before)
    part, rest = (tmp_path / name for name in ("part", "rest"))
    _, first = on_ranks(pool, before, pictures, cache, part, stop)
    outcome, second = on_ranks(pool, after, pictures, cache, rest, None, part / f"step-{stop}")
    assert outcome == "succeeded"
    np.testing.assert_allclose(first + second, losses, rtol=0, atol=1e-10)
    one, two = (load_state(folder / f"step-{TOTAL}") for folder in (undisturbed, rest))
    assert torch.equal(one["clusters"]["labels"], two["clusters"]["labels"])
    for name, weights in one["method"].items():
        torch.testing.assert_close(two["method"][name], weights, rtol=0, atol=1e-10)


def draws(spec: dict[str, Any], index: DatasetIndex, cache: Path, scratch: Path) -> np.ndarray:
    """The first random draws of a network, and one of its first weights."""
    this = open_trainer(ResolvedJobSpec.model_validate(spec), index, cache, scratch)
    if dist.is_initialized():
        dist.barrier()  # a fast rank must not disconnect while another one creates its groups
    this.close()
    weight = next(this.method.parameters()).detach().flatten()[:4]
    return np.stack([torch.rand(4, dtype=torch.float64).numpy(), weight.numpy()])


def test_ranks_share_initial_weights_but_not_random_streams(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    ranks = pool.call(4, draws, spec_of(pictures, 4), pictures, cache, tmp_path)
    alone = draws(spec_of(pictures, 1), pictures, cache, tmp_path)
    assert len({drawn.tobytes() for drawn, _ in ranks}) == 4
    np.testing.assert_array_equal(ranks[0][0], alone[0])
    for _, weight in ranks:
        np.testing.assert_array_equal(weight, alone[1])
    other = spec_of(pictures, 1, train={"seed": 4})
    assert not (draws(other, pictures, cache, tmp_path) == alone).any()


def test_clusters_on_two_ranks_equal_those_on_one(whole: Whole) -> None:
    (one, losses), (two, together) = whole(1), whole(2)
    clusterings = set()
    for step in range(STEPS, TOTAL + 1, STEPS):
        alone, ours = (
            load_state(folder / f"step-{step}")["clusters"]["labels"] for folder in (one, two)
        )
        seen = alone < CLUSTERS  # the others are held out, and no cluster's
        assert int(seen.sum()) == IMAGES
        assert len(alone[seen].unique()) == CLUSTERS
        assert torch.equal(ours[seen], alone[seen]), step
        assert bool((ours[~seen] >= CLUSTERS).all()), step
        clusterings.add(tuple(alone[seen].tolist()))
    assert len(clusterings) > 1  # clusters are recomputed
    np.testing.assert_allclose(together, losses, rtol=0, atol=1e-10)
