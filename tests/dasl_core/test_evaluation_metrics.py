"""k-NN, retrieval, clustering and health metrics against scikit-learn or naive loops."""

import math
import random
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from dasl_core import evaluate, tensors


def clouds(
    classes: int = 5, per_class: int = 12, width: int = 8, spread: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)
    y = torch.arange(classes).repeat(per_class)
    return centres[y] + spread * torch.randn(len(y), width, generator=generator), y


def test_knn_weights_votes_by_similarity() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    query = torch.tensor([[1.0, 0.05]])
    y = torch.tensor([0, 1, 1])
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3) == 1.0
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3, temperature=100) == 0.0
    # No overflow at a temperature where exp(similarity/T) is infinite.
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3, temperature=1e-4) == 1.0


def test_knn_handles_corner_cases() -> None:
    x, y = clouds()
    assert evaluate.knn_accuracy(x, y, x[:5], y[:5], k=1000) == evaluate.knn_accuracy(
        x, y, x[:5], y[:5], k=60
    )
    assert evaluate.knn_accuracy(x, y, x[:5], y[:5] + 100) == 0.0
    assert evaluate.knn_accuracy(x.numpy(), y.numpy(), x[:5].numpy(), y[:5].numpy(), k=1) == 1.0
    assert evaluate.knn_accuracy(x.bfloat16(), y, x[:5].bfloat16(), y[:5], k=1) == 1.0


@pytest.mark.parametrize("k", [1, 3, 20, 45])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_knn_equals_scikit_learn(k: int, temperature: float) -> None:
    x, y = clouds(classes=9, per_class=20, spread=1.5, seed=4)
    y = 10 * y - 7
    train, test = slice(0, 120), slice(120, 180)
    voters = KNeighborsClassifier(
        n_neighbors=k,
        metric="cosine",
        weights=lambda distance: np.exp((1 - distance) / temperature),
    ).fit(x[train].numpy(), y[train].numpy())
    expected = voters.score(x[test].numpy(), y[test].numpy())
    assert 0.2 < expected < 1
    arguments = (x[train], y[train], x[test], y[test])
    actual = evaluate.knn_accuracy(*arguments, k=k, temperature=temperature)
    assert actual == pytest.approx(expected, abs=1e-9)


def test_knn_handles_small_classes_and_ties() -> None:
    # The only member of class 7 is so near that it outweighs 9 others.
    bank = torch.cat([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]).repeat(9, 1)])
    y = torch.tensor([7] + [3] * 9)
    query = torch.tensor([[1.0, 0.2]])
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([7]), k=10) == 1
    # Of two equally near classes the smaller number wins, regardless of its position in the bank.
    bank = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    query = torch.tensor([[1.0, 0.0]])
    for y in (torch.tensor([2, 5]), torch.tensor([5, 2])):
        assert evaluate.knn_accuracy(bank, y, query, torch.tensor([2]), k=2) == 1


def naive_recall(x: Tensor, y: Tensor, k: int) -> float:
    similarity = F.normalize(x.double(), dim=1) @ F.normalize(x.double(), dim=1).t()
    hits = 0
    for query in range(len(x)):
        order = [j for j in similarity[query].argsort(descending=True).tolist() if j != query]
        hits += any(y[j] == y[query] for j in order[:k])
    return hits / len(x)


def test_recall_equals_naive_search_and_scikit_learn() -> None:
    x, y = clouds(classes=8, per_class=4, spread=1.5)
    y[0] = 99  # the only one of its class: always missed
    ks = (1, 2, 4, 8)
    recall = evaluate.recall_at_k(x, y, ks)
    assert recall == {k: naive_recall(x, y, k) for k in ks}
    assert list(recall) == list(ks)
    assert sorted(recall.values()) == list(recall.values())
    assert evaluate.recall_at_k(x, y, [31, 500]) == {31: 31 / 32, 500: 31 / 32}
    with pytest.raises(ValueError, match=r"ks must be a list .*such as \[1, 5\]; given 5"):
        evaluate.recall_at_k(x, y, 5)  # type: ignore[arg-type]


def test_recall_excludes_query_itself() -> None:
    # With 0 rather than -inf at its own position, the query would win over negative similarities.
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    y = torch.tensor([0, 0, 1])
    assert evaluate.recall_at_k(x, y, [1])[1] == naive_recall(x, y, 1) == 1 / 3


AXES = torch.cat([torch.eye(3), -torch.eye(3)])


def drawn_similarities(x: Tensor, y: Tensor, most: int) -> list[list[float]]:
    """Draw equally many pairs of one class and of two from lists of all, and return their similarities."""
    unit = F.normalize(x.double(), dim=1)
    similarity, classes = (unit @ unit.t()).float().tolist(), y.tolist()
    kinds: tuple[list[float], list[float]] = ([], [])
    for i, j in combinations(torch.argsort(y, stable=True).tolist(), 2):
        kinds[classes[i] != classes[j]].append(similarity[i][j])
    draw, count = random.Random(0), min(most // 2, *map(len, kinds))
    return [draw.sample(scores, count) for scores in kinds]


def naive_verification(x: Tensor, y: Tensor, most: int) -> dict[str, Any]:
    kinds = drawn_similarities(x, y, most)
    if len(kinds[0]) < 10:
        return {}

    def accuracy(threshold: float, tested: list[tuple[float, int]]) -> float:
        return float(np.mean([(score > threshold) != kind for score, kind in tested]))

    accuracies = []
    for fold in range(10):
        tested: list[tuple[float, int]] = []
        rest: list[tuple[float, int]] = []
        for kind, scores in enumerate(kinds):
            for number, score in enumerate(scores):
                (tested if number % 10 == fold else rest).append((score, kind))
        scores = sorted({score for score, _ in rest}, reverse=True)
        thresholds = [math.inf, *((a + b) / 2 for a, b in pairwise(scores)), -math.inf]
        right = [accuracy(threshold, rest) for threshold in thresholds]
        accuracies.append(accuracy(thresholds[int(np.argmax(right))], tested))
    mean, deviation = float(np.mean(accuracies)), float(np.std(accuracies, ddof=1))
    return {
        "verification_accuracy": pytest.approx(mean),
        "verification_accuracy_std": pytest.approx(deviation, abs=1e-12),
    }


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=13), st.integers(20, 60))
def test_verification_equals_brute_force_with_ties(rows: list[tuple[int, int]], most: int) -> None:
    points = torch.cat([AXES, torch.tensor([[3.0, 4, 0], [0, 0, 0], [0.6, 0.8, 0]])])
    x = points[[point for point, _ in rows]]
    y = torch.tensor([label for _, label in rows], dtype=torch.long)
    if not rows:
        x, y = points[:1], torch.tensor([7])
    assert evaluate.verification(x, y, pairs=most) == naive_verification(x, y, most)


def test_verification_equals_brute_force_and_does_not_depend_on_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = clouds(classes=9, per_class=8, spread=1.5)
    found = evaluate.verification(x, y, pairs=300)
    assert found == naive_verification(x, y, 300)
    assert 0.5 < found["verification_accuracy"] < 1
    assert found["verification_accuracy_std"] > 0
    monkeypatch.setattr("dasl_core.evaluate.pairs._ENTRIES", 50)
    assert evaluate.verification(x, y, pairs=300) == found


def test_tar_at_far_is_the_best_of_all_thresholds_and_needs_thirty_false_accepts() -> None:
    x, y = clouds(classes=24, per_class=18, width=5, spread=0.5)
    accuracy = {"verification_accuracy", "verification_accuracy_std"}
    found = evaluate.verification(x, y, pairs=6_000)
    assert found.keys() == {*accuracy, "tar_at_far_0.01"}
    same, different = map(np.array, drawn_similarities(x, y, 6_000))
    rates = [(same > t).mean() for t in (*different, 2) if (different > t).mean() <= 0.01]
    assert found["tar_at_far_0.01"] == pytest.approx(max(rates))
    assert 0.05 < max(rates) < 0.95
    assert evaluate.verification(x, y, pairs=5_998).keys() == accuracy
    x, y = clouds(classes=10, per_class=90, spread=0.5)
    found = evaluate.verification(x, y)
    assert found.keys() == {*accuracy, "tar_at_far_0.01", "tar_at_far_0.001"}
    assert 0 < found["tar_at_far_0.001"] < found["tar_at_far_0.01"]


def test_verification_of_degenerate_features() -> None:
    x, y = clouds(classes=3, per_class=50, spread=0)
    perfect = {"verification_accuracy": 1, "verification_accuracy_std": 0, "tar_at_far_0.01": 1}
    assert evaluate.verification(x, y) == perfect
    collapsed = {"verification_accuracy": 0.5, "verification_accuracy_std": 0, "tar_at_far_0.01": 0}
    assert evaluate.verification(torch.ones_like(x), y) == collapsed
    assert evaluate.verification(x, torch.zeros_like(y)) == {}
    assert evaluate.verification(x, torch.arange(150)) == {}
    x[7, 1] = math.nan
    with pytest.raises(evaluate.NotFiniteError, match="x holds NaN"):
        evaluate.verification(x, y)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=2, max_size=14))
def test_recall_breaks_ties_by_position(rows: list[tuple[int, int]]) -> None:
    # Similarities are exactly -1, 0 or 1, so nearly all of them tie.
    x = AXES[[axis for axis, _ in rows]]
    y = torch.tensor([label for _, label in rows])
    similarity = (x @ x.t()).fill_diagonal_(-torch.inf)
    ranking = similarity.argsort(dim=1, descending=True, stable=True)[:, :-1]
    for k, actual in evaluate.recall_at_k(x, y, [1, 2, 4, 8]).items():
        hits = (y[ranking[:, :k]] == y[:, None]).any(dim=1)
        assert actual == pytest.approx(hits.double().mean().item())


@pytest.mark.parametrize("tile_entries", [4, 1 << 22])
def test_recall_of_queries_searches_only_the_gallery(
    tile_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasl_core.tensors.TILE_ENTRIES", tile_entries)
    x, y = clouds(classes=8, per_class=6, spread=1.5)
    queries, rest = torch.arange(48) % 3 == 0, torch.arange(48) % 3 > 0
    rest &= y != 5  # its queries have no partner: always missed
    similarity = F.normalize(x[queries], dim=1) @ F.normalize(x[rest], dim=1).t()
    same = y[rest][similarity.argsort(dim=1, descending=True)] == y[queries, None]
    gallery = (x[rest], y[rest])
    for k, recall in evaluate.recall_at_k(
        x[queries], y[queries], [1, 4, 99], gallery=gallery
    ).items():
        assert recall == same[:, :k].any(dim=1).double().mean().item()
    single = evaluate.recall_at_k(x[:1], y[:1], [1], gallery=(x[:1].numpy(), y[:1].numpy()))
    assert single == {1: 1}  # an equal sample of the gallery is a neighbor
    with pytest.raises(
        ValueError, match=r"gallery\[0\] must have 8 columns, the width of x; given 2"
    ):
        evaluate.recall_at_k(x, y, [1], gallery=(x[:, :2], y))


def test_recall_accepts_k_beyond_number_of_rows() -> None:
    x, y = clouds(classes=60, per_class=20, spread=3, seed=5)
    ks = (1, 10, 100, 1000)
    recall = evaluate.recall_at_k(x, y, ks)
    assert recall == {k: naive_recall(x, y, k) for k in ks}
    assert recall[1] < recall[10] < recall[100] < recall[1000] == 1
    # K beyond the N - 1 others has no effect.
    assert set(evaluate.recall_at_k(x, y, [1199, 5000]).values()) == {1.0}


@pytest.mark.parametrize("tile_entries", [1, 100, 1 << 24])
def test_results_do_not_depend_on_tile_size(
    tile_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = clouds(spread=1.2)

    def figures() -> list[object]:
        return [
            evaluate.knn_accuracy(x[:40], y[:40], x[40:], y[40:]),
            evaluate.recall_at_k(x, y, [1, 3]),
            evaluate.nmi(x, y),
            pytest.approx(evaluate.uniformity(x), rel=1e-6),
            pytest.approx(evaluate.inter_class_distances(x, y), rel=1e-6),
            pytest.approx(evaluate.effective_rank(x), rel=1e-6),
            pytest.approx(evaluate.dimension_std(x), rel=1e-6),
            pytest.approx(evaluate.alignment(x, x.flip(0)), rel=1e-6),
        ]

    expected = figures()
    monkeypatch.setattr(tensors, "TILE_ENTRIES", tile_entries)
    tiled = figures()
    assert tiled[:3] == expected[:3]
    assert evaluate.uniformity(x) == expected[3]
    assert evaluate.inter_class_distances(x, y) == expected[4]
    assert evaluate.effective_rank(x) == expected[5]
    assert evaluate.dimension_std(x) == expected[6]
    assert evaluate.alignment(x, x.flip(0)) == expected[7]


def test_normalized_mutual_information_equals_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        a, b = generator.integers(-3, 3, 50), generator.integers(0, 7, 50)
        expected = reference.normalized_mutual_info_score(a, b)
        assert evaluate.normalized_mutual_information(a, b) == pytest.approx(expected, abs=1e-12)
    labels = torch.tensor([4, 4, 9, 9])
    assert evaluate.normalized_mutual_information(labels, labels + 1) == pytest.approx(1)
    assert evaluate.normalized_mutual_information(labels, torch.zeros(4, dtype=torch.int64)) == 0
    constant = torch.ones(4, dtype=torch.int64)
    assert evaluate.normalized_mutual_information(constant, constant) == 1


LABELLINGS = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 5)), min_size=1, max_size=40)


@given(LABELLINGS)
def test_pairwise_f1_equals_scikit_learn_pair_counts(rows: list[tuple[int, int]]) -> None:
    clusters, classes = np.array(rows).T
    (_, wrong), (missed, right) = reference.pair_confusion_matrix(classes, clusters).tolist()
    precision, recall = evaluate.pairwise_precision_recall(clusters, classes)
    if right + wrong == 0 and right + missed == 0:  # no pair is joined or should be
        assert (precision, recall, evaluate.pairwise_f1(clusters, classes)) == (1, 1, 1)
        return
    assert precision == (right / (right + wrong) if right + wrong else 0)
    assert recall == (right / (right + missed) if right + missed else 0)
    expected = 2 * precision * recall / (precision + recall) if right else 0
    assert evaluate.pairwise_f1(clusters, classes) == pytest.approx(expected)


def test_pairwise_f1_is_exact_beyond_float32_and_int32() -> None:
    classes = torch.arange(300_000) % 3
    classes[0] = 1
    clusters = torch.zeros(300_000, dtype=torch.int64)
    sizes = (99_999, 100_001, 100_000)
    right, joined = sum(n * (n - 1) // 2 for n in sizes), 300_000 * 299_999 // 2
    assert evaluate.pairwise_precision_recall(clusters, classes) == (right / joined, 1)
    assert evaluate.pairwise_f1(clusters, classes) == 2 * right / (joined + right)


def test_clustering_metrics_come_from_one_kmeans() -> None:
    x, y = clouds(classes=6, spread=1.2, seed=2)
    clusters, _ = evaluate.kmeans(F.normalize(x, dim=1), 6, seed=5, restarts=10)
    metrics = evaluate.clustering_metrics(x, y, seed=5)
    assert metrics["nmi"] == evaluate.normalized_mutual_information(clusters, y)
    assert metrics["nmi"] == evaluate.nmi(x, y, seed=5)
    assert metrics["pairwise_f1"] == evaluate.pairwise_f1(clusters, y)
    precision, recall = metrics["pairwise_precision"], metrics["pairwise_recall"]
    assert (precision, recall) == evaluate.pairwise_precision_recall(clusters, y)
    assert min(precision, recall) < metrics["pairwise_f1"] < max(precision, recall) < 1
    assert metrics.keys() == {"nmi", "pairwise_f1", "pairwise_precision", "pairwise_recall"}


def test_nmi_is_high_for_clear_and_low_for_shuffled_classes() -> None:
    x, y = clouds(classes=10, spread=0.05, seed=3)
    assert evaluate.nmi(x, y) == pytest.approx(1)
    assert evaluate.nmi(x, y) == evaluate.nmi(x.numpy(), y.numpy())
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    assert evaluate.nmi(x, shuffled) < 0.5
    assert evaluate.nmi(torch.ones(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])) < 0.9


def test_kmeans_keeps_the_best_of_its_restarts() -> None:
    x, y = clouds(classes=12, per_class=20, spread=0.3, seed=4)
    x = F.normalize(x, dim=1)

    def inertia(restarts: int, seed: int = 0) -> float:
        clusters, centers = evaluate.kmeans(x, 12, seed=seed, restarts=restarts)
        return float((x - centers[clusters]).square().sum())

    inertias = [inertia(restarts) for restarts in range(1, 11)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[-1] < inertias[0]
    assert inertias[0] == inertia(1)
    theirs = KMeans(12, n_init=10, random_state=0).fit(x.numpy())
    assert inertias[-1] == pytest.approx(theirs.inertia_, rel=1e-3)
    assert evaluate.nmi(x, y) == evaluate.nmi(x, y, restarts=10)
    first, best = evaluate.nmi(x, y, restarts=1), evaluate.nmi(x, y)
    assert best == pytest.approx(
        reference.normalized_mutual_info_score(y, theirs.labels_), abs=1e-3
    )
    assert first != best


def test_kmeans_matches_scikit_learn_and_is_repeatable() -> None:
    x, _ = clouds(classes=12, per_class=40, spread=0.8)

    def inertia(cluster: Tensor, centres: Tensor) -> float:
        return float((x - centres[cluster]).square().sum())

    ours = [inertia(*evaluate.kmeans(x, 12, seed=seed)) for seed in range(5)]
    theirs = [KMeans(12, n_init=1, random_state=seed).fit(x.numpy()).inertia_ for seed in range(5)]
    assert np.mean(ours) < 1.05 * np.mean(theirs)
    cluster, centres = evaluate.kmeans(x, 12, seed=1)
    assert torch.equal(cluster, evaluate.kmeans(x, 12, seed=1)[0])
    assert torch.equal(cluster, torch.cdist(x, centres).argmin(dim=1))
    assert len(cluster.unique()) == 12


def test_kmeans_handles_corner_cases() -> None:
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    cluster, _ = evaluate.kmeans(x, 2)
    assert cluster[0] == cluster[1] == cluster[2] != cluster[3]
    assert len(evaluate.kmeans(x, 4)[0]) == 4
    assert evaluate.kmeans(x, 1)[1].item() == pytest.approx(1.25)
    with pytest.raises(ValueError, match=r"k must be from 1 to the number of \w+, 4; given 5"):
        evaluate.kmeans(x, 5)


def test_effective_rank_equals_definition() -> None:
    assert evaluate.effective_rank(torch.eye(7)) == pytest.approx(7)
    assert evaluate.effective_rank(torch.ones(9, 4)) == pytest.approx(1, abs=1e-6)
    assert evaluate.effective_rank(torch.zeros(9, 4)) == 0
    few = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    for x in (clouds()[0], few, few.t() * torch.logspace(0, -5, 5)):
        s = np.linalg.svd(x.double().numpy(), compute_uv=False)
        p = s / s.sum()
        expected = float(np.exp(-(p * np.log(p)).sum()))
        for scale in (1, 1e-30, 1e30):
            assert evaluate.effective_rank(scale * x) == pytest.approx(expected, rel=1e-6)


def test_effective_rank_is_at_most_subspace_dimension() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator) @ torch.randn(3, 64, generator=generator)
    assert 2 < evaluate.effective_rank(x) < 3.001


def test_alignment_and_uniformity_equal_definitions() -> None:
    a, b = clouds(seed=1)[0], clouds(seed=2)[0]
    unit_a, unit_b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    expected = (unit_a - unit_b).norm(dim=1).square().mean().item()
    assert evaluate.alignment(a, b) == pytest.approx(expected, rel=1e-5)
    assert evaluate.alignment(a, 5 * a) == pytest.approx(0, abs=1e-9)
    expected = torch.pdist(unit_a).square().mul(-2).exp().mean().log().item()
    assert evaluate.uniformity(a) == pytest.approx(expected, rel=1e-5)
    assert evaluate.uniformity(torch.ones(5, 3)) == pytest.approx(0, abs=1e-6)


def test_dimension_std_and_mean_norm_equal_definitions() -> None:
    x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert evaluate.dimension_std(x) == pytest.approx(1 / 8, rel=0.02)
    assert evaluate.dimension_std(torch.ones(5, 64)) == pytest.approx(0, abs=1e-7)
    assert evaluate.mean_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])) == 3


@pytest.mark.parametrize("by", ["class", "instance"])
def test_inter_class_distances_equal_definition(by: str) -> None:
    x, y = clouds(per_class=40)
    y = y if by == "class" else torch.arange(len(y))
    unit = F.normalize(x.double(), dim=1)
    distances = torch.stack(
        [(unit[i] - unit[j]).norm() for i, j in combinations(range(len(y)), 2) if y[i] != y[j]]
    )
    figures = evaluate.inter_class_distances(x, y)
    assert figures["mean"] == pytest.approx(distances.mean().item(), rel=1e-6)
    assert figures["std"] == pytest.approx(distances.std(correction=0).item(), rel=1e-6)
    assert figures["variance"] == pytest.approx(figures["std"] ** 2)
    assert figures["min"] == pytest.approx(distances.min().item(), rel=1e-6)
    assert figures["max"] == pytest.approx(distances.max().item(), rel=1e-6)
    for name in ("q01", "q05", "q25", "q50", "q75", "q95", "q99"):
        expected = torch.quantile(distances, int(name[1:]) / 100, interpolation="nearest")
        assert figures[name] == pytest.approx(expected.item(), abs=2e-5)
    # Theorem 2: the largest |d(x, x') - d(z, z')|, here from all pairs of pairs. Theorem 3: log(1 + d).
    every_difference = (distances[:, None] - distances[None, :200]).abs().max()
    assert figures["max_difference"] >= every_difference.item() - 1e-6
    assert figures["max_difference"] == pytest.approx(
        distances.max().item() - distances.min().item()
    )
    assert figures["log_factor"] == pytest.approx(torch.log(1 + distances).max().item(), rel=1e-6)


def test_inter_class_distances_near_collapse_and_of_simplex() -> None:
    simplex = evaluate.inter_class_distances(torch.eye(6), torch.arange(6))
    assert simplex["mean"] == simplex["max"] == pytest.approx(math.sqrt(2))
    assert simplex["max_difference"] == pytest.approx(0, abs=1e-12)
    assert simplex["std"] == pytest.approx(0, abs=1e-7)
    # Two points 1e-5 apart: products in float32 would give 0 or 5e-4.
    x = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])
    assert evaluate.inter_class_distances(x, torch.arange(2))["mean"] == pytest.approx(
        1e-5, rel=0.01
    )
    with pytest.raises(ValueError, match="y must hold at least two different labels"):
        evaluate.inter_class_distances(x, torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_rows_count_as_one_point(dtype: torch.dtype) -> None:
    zeros = torch.zeros(6, 4, dtype=dtype)
    assert evaluate.uniformity(zeros) == 0
    collapsed = evaluate.inter_class_distances(zeros, torch.arange(6))
    assert collapsed["mean"] == collapsed["max"] == collapsed["max_difference"] == 0
    some = torch.cat([zeros[:2], torch.eye(4, dtype=dtype)])
    pairs = torch.pdist(some.double())
    assert evaluate.uniformity(some) == pytest.approx(
        math.log(float((-2 * pairs.square()).exp().mean())), rel=1e-6
    )
    figures = evaluate.inter_class_distances(some, torch.arange(6))
    assert figures["mean"] == pytest.approx(float(pairs.mean()))
    assert (figures["min"], figures["max"]) == pytest.approx((0, math.sqrt(2)))


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e38, torch.float32),
        (1e-34, torch.float32),
        (1e300, torch.float64),
        (1e-300, torch.float64),
    ],
)
def test_metrics_do_not_depend_on_feature_scale(scale: float, dtype: torch.dtype) -> None:
    x, y = clouds(spread=1.2)
    x = x.to(dtype) / 10
    scaled = x * scale
    for measure in (evaluate.uniformity, evaluate.dimension_std, evaluate.effective_rank):
        assert measure(scaled) == pytest.approx(measure(x), rel=1e-4), measure
    assert evaluate.alignment(scaled, x) == pytest.approx(0, abs=1e-10)
    assert evaluate.uniformity(torch.full((6, 4), 2 * scale, dtype=dtype)) == 0
    assert evaluate.knn_accuracy(scaled, y, scaled, y) == evaluate.knn_accuracy(x, y, x, y)
    assert evaluate.recall_at_k(scaled, y, [1, 5]) == evaluate.recall_at_k(x, y, [1, 5])
    theirs = evaluate.inter_class_distances(scaled, y)
    assert theirs == pytest.approx(evaluate.inter_class_distances(x, y), rel=1e-4)
    if dtype == torch.float32:
        assert evaluate.mean_norm(scaled) == pytest.approx(scale * evaluate.mean_norm(x), rel=1e-4)


def test_metrics_read_arrays_without_copy_and_read_only() -> None:
    array = clouds()[0].numpy()
    assert tensors.feature_matrix(array, "x").data_ptr() == array.ctypes.data
    frozen = array.copy()
    frozen.flags.writeable = False
    for other in (frozen, np.asfortranarray(array), array.astype(">f4"), array[::-1][::-1]):
        assert evaluate.uniformity(other) == evaluate.uniformity(array)


def test_metrics_are_exact_despite_reduced_precision_settings() -> None:
    x, y = clouds(spread=1.2)
    expected = evaluate.uniformity(x), evaluate.knn_accuracy(x[:40], y[:40], x[40:], y[40:])
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = evaluate.uniformity(x), evaluate.knn_accuracy(x[:40], y[:40], x[40:], y[40:])
            assert (x @ x.t()).dtype == torch.bfloat16
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(allowed)
    assert actual == expected


def test_errors_name_invalid_argument() -> None:
    x, y = clouds()
    for call, expected in (
        (lambda: evaluate.knn_accuracy(x, y, x[:, :3], y), r"test_x must have the \d+ columns"),
        (lambda: evaluate.knn_accuracy(x, y, x, y[:3]), r"test_y must have the shape \(60,\)"),
        (lambda: evaluate.knn_accuracy(x[:0], y[:0], x, y), "train_x must have at least 1 rows"),
        (lambda: evaluate.knn_accuracy(x, y.float(), x, y), "train_y must be integers"),
        (lambda: evaluate.knn_accuracy(x, y, x, y, k=0), "k must be at least 1.*; given 0"),
        (lambda: evaluate.knn_accuracy(x, y, x, y, temperature=0), "temperature must be above 0"),
        (lambda: evaluate.knn_accuracy(x * torch.nan, y, x, y), "train_x holds NaN"),
        (lambda: evaluate.knn_accuracy(x, y, x, y, k=1.5), r"k must be .* whole number; given 1.5"),  # type: ignore[arg-type]
        (lambda: evaluate.knn_accuracy(x, y, x, y, temperature=math.nan), "temperature must be"),
        (lambda: evaluate.kmeans(x, 2.0), r"k must be .* whole number; given 2.0"),  # type: ignore[arg-type]
        (lambda: evaluate.kmeans(x, 61), "k must be"),
        (lambda: evaluate.kmeans(x, 2, restarts=0), "restarts must be at least 1"),
        (lambda: evaluate.kmeans(x, 2, max_iterations=1.5), "max_iterations must be at least 1"),  # type: ignore[arg-type]
        (
            lambda: evaluate.recall_at_k(x, y, []),
            "ks must be a list of whole numbers of at least 1",
        ),
        (lambda: evaluate.recall_at_k(x, y, [1, 0]), "ks must be a list of whole numbers"),
        (lambda: evaluate.recall_at_k(x, y, [1.5]), r"ks must be .* given \[1.5\]"),  # type: ignore[list-item]
        (lambda: evaluate.recall_at_k(x, y, "ab"), r"ks must be .* given \['a', 'b'\]"),  # type: ignore[arg-type]
        (lambda: evaluate.recall_at_k(x[:1], y[:1], [1]), "x must have at least 2 rows; given 1"),
        (lambda: evaluate.verification(x, y, pairs=19), "pairs must be at least 20"),
        (lambda: evaluate.verification(x, y[:9]), r"y must have the shape \(60,\)"),
        (lambda: evaluate.nmi(x[0], y), r"x must have the shape \(N, d\); given \(8,\)"),
        (lambda: evaluate.nmi([1], y), "x must be a torch tensor or a numeric NumPy array"),  # type: ignore[arg-type]
        (lambda: evaluate.nmi(np.array([["a"]]), y), "given an array of <U1"),
        (lambda: evaluate.alignment(x, x[:4]), "b must have the shape of a"),
        (lambda: evaluate.uniformity(x[:1]), "x must have at least 2 rows"),
    ):
        with pytest.raises(ValueError, match=expected):
            call()
