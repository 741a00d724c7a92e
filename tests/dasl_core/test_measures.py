"""k-NN, retrieval, clustering and health figures against scikit-learn or naive loops."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference
from sklearn.cluster import KMeans
from torch import Tensor

from dasl_core import evaluate
from dasl_core.evaluate import inputs


def clouds(
    classes: int = 5, per_class: int = 12, width: int = 8, spread: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)
    y = torch.arange(classes).repeat(per_class)
    return centres[y] + spread * torch.randn(len(y), width, generator=generator), y


def naive_knn(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, k: int, temperature: float
) -> float:
    bank, queries = F.normalize(train_x.double(), dim=1), F.normalize(test_x.double(), dim=1)
    correct = 0
    for query, label in zip(queries, test_y, strict=True):
        similarity = bank @ query
        votes: dict[int, float] = {}
        for index in similarity.argsort(descending=True)[:k].tolist():
            weight = math.exp(similarity[index].item() / temperature)
            votes[int(train_y[index])] = votes.get(int(train_y[index]), 0.0) + weight
        correct += max(votes, key=lambda c: votes[c]) == int(label)
    return correct / len(test_y)


@pytest.mark.parametrize("k", [1, 5, 20, 45])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_knn_equals_the_naive_vote(k: int, temperature: float) -> None:
    x, y = clouds(spread=1.2)
    y = 10 * y - 7
    train, test = slice(0, 45), slice(45, 60)
    arguments = (x[train], y[train], x[test], y[test])
    expected = naive_knn(*arguments, k, temperature)
    assert 0.1 < expected < 1
    assert evaluate.knn_accuracy(*arguments, k=k, temperature=temperature) == expected


def test_knn_weights_and_not_only_counts() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    query = torch.tensor([[1.0, 0.05]])
    y = torch.tensor([0, 1, 1])
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3) == 1.0
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3, temperature=100) == 0.0
    # No overflow at a temperature where exp(similarity/T) is infinite.
    assert evaluate.knn_accuracy(bank, y, query, torch.tensor([0]), k=3, temperature=1e-4) == 1.0


def test_knn_corner_cases() -> None:
    x, y = clouds()
    assert evaluate.knn_accuracy(x, y, x[:5], y[:5], k=1000) == evaluate.knn_accuracy(
        x, y, x[:5], y[:5], k=60
    )
    assert evaluate.knn_accuracy(x, y, x[:5], y[:5] + 100) == 0.0
    assert evaluate.knn_accuracy(x.numpy(), y.numpy(), x[:5].numpy(), y[:5].numpy(), k=1) == 1.0
    assert evaluate.knn_accuracy(x.bfloat16(), y, x[:5].bfloat16(), y[:5], k=1) == 1.0


def naive_recall(x: Tensor, y: Tensor, k: int) -> float:
    similarity = F.normalize(x.double(), dim=1) @ F.normalize(x.double(), dim=1).t()
    hits = 0
    for query in range(len(x)):
        order = [j for j in similarity[query].argsort(descending=True).tolist() if j != query]
        hits += any(y[j] == y[query] for j in order[:k])
    return hits / len(x)


def test_recall_equals_the_naive_search_and_scikit_learn() -> None:
    x, y = clouds(classes=8, per_class=4, spread=1.5)
    y[0] = 99  # alone in its class: always missed
    ks = (1, 2, 4, 8)
    recall = evaluate.recall_at_k(x, y, ks)
    assert recall == {k: naive_recall(x, y, k) for k in ks}
    assert list(recall) == list(ks)
    assert sorted(recall.values()) == list(recall.values())
    assert evaluate.recall_at_k(x, y, [31, 500]) == {31: 31 / 32, 500: 31 / 32}


def test_a_query_never_finds_itself_even_when_all_others_are_opposite() -> None:
    # With 0 rather than -inf in its own place, the query would win over negative similarities.
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    y = torch.tensor([0, 0, 1])
    assert evaluate.recall_at_k(x, y, [1])[1] == naive_recall(x, y, 1) == 1 / 3


@pytest.mark.parametrize("tile_entries", [1, 100, 1 << 24])
def test_tiles_change_nothing(tile_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = clouds(spread=1.2)

    def figures() -> list[object]:
        return [
            evaluate.knn_accuracy(x[:40], y[:40], x[40:], y[40:]),
            evaluate.recall_at_k(x, y, [1, 3]),
            evaluate.nmi(x, y),
            pytest.approx(evaluate.uniformity(x), rel=1e-6),
            pytest.approx(evaluate.inter_class_distances(x, y), rel=1e-6),
        ]

    expected = figures()
    monkeypatch.setattr(inputs, "TILE_ENTRIES", tile_entries)
    tiled = figures()
    assert tiled[:3] == expected[:3]
    assert evaluate.uniformity(x) == expected[3]
    assert evaluate.inter_class_distances(x, y) == expected[4]


def test_normalized_mutual_information_equals_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        a, b = generator.integers(-3, 3, 50), generator.integers(0, 7, 50)
        expected = reference.normalized_mutual_info_score(a, b)
        assert evaluate.normalized_mutual_information(a, b) == pytest.approx(expected, abs=1e-12)
    a = torch.tensor([4, 4, 9, 9])
    assert evaluate.normalized_mutual_information(a, a + 1) == pytest.approx(1)
    assert evaluate.normalized_mutual_information(a, torch.zeros(4, dtype=torch.int64)) == 0
    constant = torch.ones(4, dtype=torch.int64)
    assert evaluate.normalized_mutual_information(constant, constant) == 1


def test_nmi_of_clear_and_of_shuffled_classes() -> None:
    x, y = clouds(classes=10, spread=0.05, seed=3)
    assert evaluate.nmi(x, y) == pytest.approx(1)
    assert evaluate.nmi(x, y) == evaluate.nmi(x.numpy(), y.numpy())
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    assert evaluate.nmi(x, shuffled) < 0.5
    assert evaluate.nmi(torch.ones(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])) < 0.9


def test_kmeans_is_as_good_as_scikit_learn_and_repeatable() -> None:
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


def test_kmeans_corner_cases() -> None:
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    cluster, _ = evaluate.kmeans(x, 2)
    assert cluster[0] == cluster[1] == cluster[2] != cluster[3]
    assert len(evaluate.kmeans(x, 4)[0]) == 4
    assert evaluate.kmeans(x, 1)[1].item() == pytest.approx(1.25)
    with pytest.raises(ValueError, match="k must be from 1 to the number of points, 4; given 5"):
        evaluate.kmeans(x, 5)


def test_effective_rank() -> None:
    assert evaluate.effective_rank(torch.eye(7)) == pytest.approx(7)
    assert evaluate.effective_rank(torch.ones(9, 4)) == pytest.approx(1, abs=1e-6)
    assert evaluate.effective_rank(torch.zeros(9, 4)) == 0
    x = clouds()[0]
    s = np.linalg.svd(x.double().numpy(), compute_uv=False)
    p = s / s.sum()
    assert evaluate.effective_rank(x) == pytest.approx(float(np.exp(-(p * np.log(p)).sum())))


def test_alignment_and_uniformity_equal_their_definitions() -> None:
    a, b = clouds(seed=1)[0], clouds(seed=2)[0]
    unit_a, unit_b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    expected = (unit_a - unit_b).norm(dim=1).square().mean().item()
    assert evaluate.alignment(a, b) == pytest.approx(expected, rel=1e-5)
    assert evaluate.alignment(a, 5 * a) == pytest.approx(0, abs=1e-9)
    expected = torch.pdist(unit_a).square().mul(-2).exp().mean().log().item()
    assert evaluate.uniformity(a) == pytest.approx(expected, rel=1e-5)
    assert evaluate.uniformity(torch.ones(5, 3)) == pytest.approx(0, abs=1e-6)


def test_dimension_std_and_mean_norm() -> None:
    x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert evaluate.dimension_std(x) == pytest.approx(1 / 8, rel=0.02)
    assert evaluate.dimension_std(torch.ones(5, 64)) == pytest.approx(0, abs=1e-7)
    assert evaluate.mean_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])) == 3


def test_inter_class_distances() -> None:
    x, y = clouds(per_class=4)
    unit = F.normalize(x, dim=1).double()
    distances = torch.stack(
        [(unit[i] - unit[j]).norm() for i, j in combinations(range(len(y)), 2) if y[i] != y[j]]
    )
    figures = evaluate.inter_class_distances(x, y)
    assert figures["mean"] == pytest.approx(distances.mean().item(), rel=1e-5)
    assert figures["std"] == pytest.approx(distances.std(correction=0).item(), rel=1e-5)
    assert figures["variance"] == pytest.approx(figures["std"] ** 2)
    assert figures["max"] == pytest.approx(distances.max().item(), rel=1e-5)
    spread = (distances.max() - distances.min()).item()
    assert figures["max_difference"] == pytest.approx(spread, rel=1e-5)
    with pytest.raises(ValueError, match="y must hold at least two different labels"):
        evaluate.inter_class_distances(x, torch.zeros(len(y), dtype=torch.int64))


def test_wrong_arguments_are_named() -> None:
    x, y = clouds()
    for call, expected in (
        (lambda: evaluate.knn_accuracy(x, y, x[:, :3], y), "test_x must have as many columns"),
        (lambda: evaluate.knn_accuracy(x, y, x, y[:3]), r"test_y must have the shape \(60,\)"),
        (lambda: evaluate.knn_accuracy(x[:0], y[:0], x, y), "train_x must have at least 1 rows"),
        (lambda: evaluate.knn_accuracy(x, y.float(), x, y), "train_y must be integers"),
        (lambda: evaluate.knn_accuracy(x, y, x, y, k=0), "k must be at least 1; given 0"),
        (lambda: evaluate.knn_accuracy(x, y, x, y, temperature=0), "temperature must be above 0"),
        (lambda: evaluate.knn_accuracy(x * torch.nan, y, x, y), "train_x holds NaN"),
        (lambda: evaluate.recall_at_k(x, y, []), "ks must hold numbers of at least 1"),
        (lambda: evaluate.recall_at_k(x, y, [1, 0]), "ks must hold numbers of at least 1"),
        (lambda: evaluate.recall_at_k(x[:1], y[:1], [1]), "x must have at least 2 rows; given 1"),
        (lambda: evaluate.nmi(x[0], y), r"x must have the shape \(N, d\); given \(8,\)"),
        (lambda: evaluate.nmi([1], y), "x must be a torch tensor or a numeric NumPy array"),  # type: ignore[arg-type]
        (lambda: evaluate.nmi(np.array([["a"]]), y), "given an array of <U1"),
        (lambda: evaluate.alignment(x, x[:4]), "b must have the shape of a"),
        (lambda: evaluate.uniformity(x[:1]), "x must have at least 2 rows"),
    ):
        with pytest.raises(ValueError, match=expected):
            call()
