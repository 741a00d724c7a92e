"""Distributed k-means: against scikit-learn and naive loops, and the same on any number of ranks."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from dasl_core.clustering import cluster, cluster_quality
from dasl_core.clustering import kmeans as clustering
from dasl_core.distributed import all_ranks
from tests.support.gloo_pool import GlooPool
from tests.support.largest_tensor import LargestTensor


def clouds(clusters: int = 6, each: int = 20, width: int = 5, spread: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(clusters * each, width, generator=generator, dtype=torch.float64)
    return centres.repeat(each, 1) + spread * noise


def start_of(x: Tensor, k: int, seed: int) -> Tensor:
    points = clustering._Points(x, "euclidean", None)
    points.set_positions(None)
    return points.start(k, seed)


# --- one process


@pytest.mark.parametrize("k", [1, 4, 9])
def test_euclidean_equals_scikit_learn(k: int) -> None:
    x = clouds(spread=0.8)
    result = cluster(x, k, metric="euclidean", seed=3, max_iterations=300)
    theirs = KMeans(k, init=start_of(x, k, 3).numpy(), n_init=1, tol=0, algorithm="lloyd").fit(x)
    np.testing.assert_array_equal(result.assignments.numpy(), theirs.labels_)
    np.testing.assert_allclose(result.centers.numpy(), theirs.cluster_centers_, atol=1e-12)
    assert result.inertia == pytest.approx(theirs.inertia_)


def test_spherical_equals_naive_loop() -> None:
    x = clouds(spread=0.8)
    unit = F.normalize(x, dim=1)
    centres, assigned = start_of(unit, 5, 1), torch.zeros(0)
    while True:
        before, assigned = assigned, (unit @ centres.t()).argmax(dim=1)
        if torch.equal(before, assigned):
            break
        centres = torch.stack(
            [F.normalize(unit[assigned == c].sum(dim=0), dim=0) for c in range(5)]
        )
    result = cluster(x, 5, metric="spherical", seed=1, max_iterations=300)
    assert torch.equal(result.assignments, assigned)
    torch.testing.assert_close(result.centers, centres)
    cosines = (unit * centres[assigned]).sum(dim=1)
    assert result.inertia == pytest.approx(float((2 - 2 * cosines).sum()))


@pytest.mark.parametrize("metric", ["spherical", "euclidean"])
def test_clear_clusters_are_found(metric: Any) -> None:
    result = cluster(clouds(spread=0.01).float(), 6, metric=metric)
    classes = torch.arange(6).repeat(20)
    figures = cluster_quality(result, result.assignments, classes=classes)
    assert figures["nmi_classes"] == pytest.approx(1)
    assert result.centers.dtype == torch.float32
    assert result.iterations <= 3


def test_clustering_depends_only_on_seed() -> None:
    x = clouds(spread=1.5)
    state = torch.get_rng_state()
    first, again, other = (cluster(x, 12, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.assignments, again.assignments)
    assert torch.equal(first.centers, again.centers)
    assert not torch.equal(first.assignments, other.assignments)
    assert torch.equal(torch.get_rng_state(), state)


def test_half_precision_is_computed_in_float32() -> None:
    x = clouds().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = cluster(x, 6)
    assert result.centers.dtype == torch.float32
    assert torch.equal(result.assignments, cluster(x.float(), 6).assignments)


def test_tiles_bound_memory_without_changing_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clouds(clusters=10, each=40, width=3, spread=1.0)
    whole = cluster(x, 50, metric="euclidean")
    monkeypatch.setattr(clustering, "_SCORE_ENTRIES", 500)
    monkeypatch.setattr(clustering, "_SUM_ENTRIES", 50)
    with LargestTensor() as largest:
        tiled = cluster(x, 50, metric="euclidean")
    assert torch.equal(whole.assignments, tiled.assignments)
    # 5 candidates for the next center are compared at once; scores of all rows are 400 * 50.
    assert largest.entries <= 5 * 400


def test_start_of_large_bank_is_drawn_from_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "_START_POINTS", 4)
    x = clouds(clusters=5, each=2000, width=2, spread=0.01)
    monkeypatch.setattr(clustering, "_SCORE_ENTRIES", 1000)
    monkeypatch.setattr(clustering, "_SUM_ENTRIES", 1000)
    points = clustering._Points(x, "euclidean", None)
    points.set_positions(None)
    with LargestTensor() as largest:
        start = points.start(5, 0)
    assert largest.entries == len(x)  # positions; the candidates of all rows would be 3 times that
    assert bool((torch.cdist(start, x).min(dim=1).values == 0).all())


def test_very_many_centers_begin_as_a_random_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their k-means++ would take the square of their number, on one rank."""
    monkeypatch.setattr(clustering, "_MOST_BY_DISTANCE", 29)
    x = clouds(clusters=10, each=20)
    for seed in (0, 1):
        with LargestTensor() as largest:
            start = start_of(x, 30, seed)
        assert largest.entries == len(x)  # positions; the candidates would be all rows
        rows = [tuple(row) for row in start.tolist()]
        assert len(set(rows)) == 30
        assert set(rows) <= {tuple(row) for row in x.tolist()}
    assert not torch.equal(start_of(x, 30, 0), start)
    assert cluster(x, 30).inertia < cluster(x, 10).inertia


@pytest.mark.parametrize("metric", ["spherical", "euclidean"])
def test_empty_clusters_get_farthest_points(metric: Any) -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [0.0, 1.0]])
    x = x.double()
    centres = torch.tensor([[1.0, 0.0], [-9.0, -9.0], [-9.5, -9.0]]).double()
    if metric == "spherical":
        centres = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, -1.0]]).double()
    with patch.object(clustering._Points, "start", lambda points, k, seed: centres):
        result = cluster(x, 3, metric=metric)
    assert result.assignments[0] == result.assignments[1] == result.assignments[2]
    assert len(result.assignments.unique()) == 3
    assert result.reseeded >= 1


def test_corner_cases() -> None:
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    few = cluster(x, 2, metric="euclidean").assignments
    assert few[0] == few[1] == few[2] != few[3]
    assert cluster(x, 1, metric="euclidean").centers.item() == pytest.approx(1.25)
    # More clusters than different points: the rest stay empty, and k-means terminates.
    result = cluster(x, 4, metric="euclidean")
    assert cluster_quality(result, result.assignments)["empty"] == 2
    assert result.iterations < 50
    each = cluster(torch.eye(4), 4).assignments
    assert sorted(each.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"k": 0}, "k must be from 1 to the number of points, 4; given 0"),
        ({"k": 5}, "k must be from 1 to the number of points, 4; given 5"),
        ({"metric": "cosine"}, "metric must be one of 'spherical', 'euclidean'; given 'cosine'"),
        ({"max_iterations": 0}, "max_iterations must be at least 1; given 0"),
        ({"bank": torch.zeros(4)}, r"bank must have the shape \(n, d\); given \(4,\)"),
        ({"bank": torch.tensor([[1.0]] * 3 + [[np.nan]])}, "bank holds NaN or infinite .* 1 rows"),
        ({"positions": torch.tensor([0, 1, 2, 2])}, "positions must name each of the 4 rows"),
        ({"positions": torch.tensor([1, 2, 3, 4])}, "positions must name each of the 4 rows"),
        ({"positions": torch.arange(3)}, "positions must name each of the 4 rows"),
    ],
)
def test_invalid_arguments_are_named(change: dict[str, Any], expected: str) -> None:
    arguments: dict[str, Any] = {"bank": torch.eye(4), "k": 2} | change
    with pytest.raises(ValueError, match=expected):
        cluster(**arguments)


# --- many processes


def part(x: np.ndarray) -> Tensor:
    """This rank's rows; shares differ by one."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.from_numpy(np.array_split(x, ranks)[rank])


def shared(x: np.ndarray, order: np.ndarray | None, k: int, metric: Any, *options: Any) -> Any:
    """Cluster rows that are distributed in the given order."""
    if order is None:
        result = cluster(part(x), k, metric=metric, seed=5, group=all_ranks())
    else:
        result = cluster(
            part(x[order]), k, metric=metric, seed=5, positions=part(order), group=all_ranks()
        )
    return result.assignments.numpy(), result.centers.numpy(), result.inertia, result.reseeded


def alone(x: np.ndarray) -> np.ndarray:
    """Cluster with all rows on every rank."""
    return cluster(torch.from_numpy(x), 4, seed=5).assignments.numpy()


def from_bad_start(x: np.ndarray, k: int) -> Any:
    """Start with all centers but the first far from every point."""

    def start(points: Any, k: int, seed: int) -> Tensor:
        centres = torch.full((k, x.shape[1]), 1e3, dtype=torch.float64)
        centres[0] = 0
        return centres

    with patch.object(clustering._Points, "start", start):
        return shared(x, None, k, "euclidean")


def reports_nan(x: np.ndarray) -> str:
    bank = part(x)
    if not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1:
        bank[0] = float("nan")
    try:
        cluster(bank, 3, group=all_ranks())
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("metric", ["spherical", "euclidean"])
@pytest.mark.parametrize("k", [3, 20])  # with 3, the start is drawn from 96 of the 101 rows
def test_clustering_on_ranks_equals_one_process(pool: GlooPool, metric: Any, k: int) -> None:
    x = clouds(spread=1.0)[:101].numpy()
    expected, centres, inertia, _ = shared(x, None, k, metric)
    for ranks in (2, 4):
        results = pool.call(ranks, shared, x, None, k, metric)
        assignments = np.concatenate([result[0] for result in results])
        np.testing.assert_array_equal(assignments, expected)
        for result in results:
            np.testing.assert_array_equal(result[1], results[0][1])
            np.testing.assert_allclose(result[1], centres, rtol=1e-10, atol=1e-12)
            assert result[2] == pytest.approx(inertia, rel=1e-12)


def test_clustering_does_not_depend_on_distribution_of_rows(pool: GlooPool) -> None:
    x = clouds(spread=1.0)[:101].numpy()
    expected = shared(x, None, 7, "spherical")[0]
    order = np.random.default_rng(0).permutation(101)
    for ranks in (1, 2, 4):
        results = pool.call(ranks, shared, x, order, 7, "spherical")
        np.testing.assert_array_equal(
            np.concatenate([result[0] for result in results]), expected[order]
        )


def test_farthest_points_are_of_all_ranks(pool: GlooPool) -> None:
    # Whole numbers: every sum is exact, and many distances tie.
    x = np.random.default_rng(1).integers(-4, 5, (61, 2)).astype(np.float64)
    expected, centres, _, reseeded = from_bad_start(x, 9)
    assert reseeded >= 8
    for ranks in (2, 4):
        results = pool.call(ranks, from_bad_start, x, 9)
        np.testing.assert_array_equal(np.concatenate([r[0] for r in results]), expected)
        np.testing.assert_allclose(results[-1][1], centres)
        assert {result[3] for result in results} == {reseeded}


def test_more_ranks_than_rows(pool: GlooPool) -> None:
    x = clouds()[:3].numpy()
    results = pool.call(4, shared, x, None, 2, "spherical")
    assert [len(result[0]) for result in results] == [1, 1, 1, 0]
    np.testing.assert_array_equal(
        np.concatenate([result[0] for result in results]), shared(x, None, 2, "spherical")[0]
    )


def test_whole_bank_on_every_rank(pool: GlooPool) -> None:
    x = clouds().numpy()
    for assignments in pool.call(2, alone, x):
        np.testing.assert_array_equal(assignments, alone(x))


def test_all_ranks_refuse_invalid_rows_of_one(pool: GlooPool) -> None:
    answers = pool.call(2, reports_nan, clouds().numpy())
    assert answers == ["bank holds NaN or infinite numbers in 1 rows"] * 2


# --- quality


def test_quality_metrics_of_small_clustering() -> None:
    x = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 2.0]] + [[0.0, 1.0]]).double()
    result = cluster(x, 2)
    names = result.assignments
    figures = cluster_quality(
        result, names, previous=1 - names, classes=torch.tensor([0, 0, 0, 0, 1])
    )
    nmi = figures.pop("nmi_classes")
    assert 0.3 < nmi < 0.9
    assert figures == pytest.approx(
        {
            "size_min": 2,
            "size_median": 2.5,
            "size_max": 3,
            "largest_share": 0.6,
            "empty": 0,
            "reseeded": 0,
            "cosine": 1,
            "nmi_previous": 1,
        }
    )
    spread = cluster(x, 1, metric="euclidean")
    figures = cluster_quality(spread, spread.assignments)
    expected = (x - x.mean(dim=0)).square().sum(dim=1).mean().item()
    assert figures["squared_distance"] == pytest.approx(expected)
    assert "nmi_classes" not in figures
