"""The evaluator: which images it reads, and at which size."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dasl_core import evaluate
from dasl_core.data.canvases import Canvases
from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.methods import build_method
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train import evaluation
from dasl_core.train.evaluation import DISTANCES, RAW_SIDE, Evaluator
from dasl_core.train.features import ImageEncoder, eval_mode
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import image_folder, ingest, resolved

Build = Callable[..., Evaluator]


def evaluator_of(
    spec: ResolvedJobSpec,
    train: ImageSet,
    held_out: ImageSet,
    kind: type[ImageEncoder] = ImageEncoder,
) -> Evaluator:
    """Create an evaluator as a run does."""
    encoder = kind(spec, torch.device("cpu"))
    return Evaluator(spec.evaluate, encoder, train, held_out)


@pytest.mark.parametrize(("image_size", "side"), [(16, 16), (96, RAW_SIDE)])
def test_raw_pixels_are_downsampled(tmp_path: Path, image_size: int, side: int) -> None:
    index = ingest(image_folder(tmp_path / "pictures", size=(100, 120)))
    spec = resolved(index, backbone={"name": "test_resnet", "image_size": image_size})
    canvases = Canvases(index, image_size, 3, cache=tmp_path / "cache", threads=1)
    images = ImageSet(canvases, np.arange(len(index)))
    widths = []

    class Recording(ImageEncoder):
        def features(self, *arguments: object, **options: object) -> Tensor:
            features = super().features(*arguments, **options)  # type: ignore[arg-type]
            widths.append(features.shape[1])
            return features

    evaluator = evaluator_of(spec, images, images, Recording)
    metrics = evaluator.raw_pixels()
    canvases.close()
    assert set(widths) == {3 * side * side}
    assert metrics["recall_at_1"] > 0.9  # one color per class
    assert evaluator.encoder.image_size == image_size


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Build evaluators with every third image held out, and close their canvases afterwards."""
    opened: list[Canvases] = []

    def evaluator(index: DatasetIndex, precision: str = "fp32", **settings: object) -> Evaluator:
        spec = resolved(index, evaluate=settings, train={"precision": precision})
        opened.append(Canvases(index, 16, 3, cache=tmp_path / "cache", threads=1))
        everything = np.arange(len(index))
        train, held_out = everything[everything % 3 > 0], everything[::3]
        images = [ImageSet(opened[-1], samples) for samples in (train, held_out)]
        return evaluator_of(spec, images[0], images[1])

    yield evaluator
    for canvases in opened:
        canvases.close()


def network_with_a_head() -> nn.Module:
    """A network without timm's attributes, so that the width of its features is unknown."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 6)
    return nn.Sequential(*layers)


def test_probe_learns_from_crops_and_from_shares_of_the_labels(
    build: Build, pictures: DatasetIndex
) -> None:
    settings = {"epochs": 12, "learning_rates": [3.0], "batch_size": 8, "labels": [0.5]}
    build_with = [build(pictures, linear=settings | {"views": v}) for v in ("whole", "crops")]
    whole, crops = (each.backbone(network_with_a_head(), final=True) for each in build_with)
    for metrics in (whole, crops):
        assert metrics["linear_top1"] > 0.8  # one color per class
        assert metrics["linear_top1_labels_0.5"] > 0.5
    # Crops are redrawn in each epoch, so their features differ.
    network, encoder = network_with_a_head().eval(), build_with[1].encoder
    drawn = [encoder.features(network, build_with[1].train, n, encoder.crops) for n in (0, 1)]
    assert not torch.equal(*drawn)


def test_probe_and_fine_tuning_run_only_at_end(build: Build, pictures: DatasetIndex) -> None:
    evaluator = build(
        pictures,
        linear={"epochs": 20, "learning_rates": [0.1, 3], "batch_size": 8},
        finetune={"epochs": 2, "batch_size": 6},
        clustering=True,
    )
    network = network_with_a_head()
    network.get_submodule("1").eval()  # like a frozen BatchNorm
    weights = [parameter.clone() for parameter in network.parameters()]
    before = evaluator.backbone(network)
    final = evaluator.backbone(network, final=True)
    modes = [module.training for module in network.children()]
    assert (network.training, modes) == (True, [True, False, True, True])
    assert all(torch.equal(*pair) for pair in zip(weights, network.parameters(), strict=True))
    added = {"linear_top1", "linear_top5", "linear_lr", "linear_top1_lr_0.1", "linear_top1_lr_3"}
    added |= {"finetune_top1", "finetune_top5"}
    assert final.keys() - before.keys() == added
    assert {name: final[name] for name in before} == before
    assert final["linear_top1"] == final[f"linear_top1_lr_{final['linear_lr']:g}"]
    assert final["linear_top1"] > 0.8  # one color per class
    assert final["linear_top5"] == final["finetune_top5"] == 1  # of three classes
    clusters = {"nmi", "pairwise_f1", "pairwise_precision", "pairwise_recall"}
    assert clusters < before.keys()
    assert "nmi" in evaluator.raw_pixels()


def test_pairs_of_held_out_images_are_verified(build: Build, tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=2, per_class=18))
    evaluator = build(index, verification=40)
    measured, chance = evaluator.raw_pixels(), evaluator.chance()
    assert measured["verification_accuracy"] > 0.9 > chance["verification_accuracy"] == 0.5
    assert "verification_accuracy" not in build(index).raw_pixels()


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp64"])
def test_evaluator_supports_every_precision(
    build: Build, pictures: DatasetIndex, precision: str
) -> None:
    evaluator = build(pictures, precision, linear={"epochs": 20}, finetune={"epochs": 1})
    network = network_with_a_head()
    metrics = evaluator.backbone(network.double() if precision == "fp64" else network, final=True)
    assert metrics["linear_top1"] > 0.8
    assert 0 <= metrics["finetune_top1"] <= 1


def test_evaluator_metrics_equal_metric_functions(build: Build, pictures: DatasetIndex) -> None:
    evaluator = build(pictures, clustering=True, knn={"k": [20, 3]})
    network = network_with_a_head().eval()
    metrics = evaluator.backbone(network)
    bank, x = (
        evaluator.encoder.features(network, evaluator.train),
        evaluator.encoder.features(network, evaluator.held_out),
    )
    labels = torch.tensor(pictures.labels)
    train_y, y = labels[evaluator.train.indices], labels[evaluator.held_out.indices]
    assert metrics["knn_top1"] == evaluate.knn_accuracy(bank, train_y, x, y)
    assert metrics["knn_top1_k3"] == evaluate.knn_accuracy(bank, train_y, x, y, k=3)
    assert metrics["knn_k"] == 20
    assert metrics["recall_at_2"] == evaluate.recall_at_k(x, y, [2])[2]
    assert metrics["nmi"] == evaluate.nmi(x, y)
    assert metrics["effective_rank"] == evaluate.effective_rank(x)
    for kind, labelling in (("distance", torch.arange(len(x))), ("class_distance", y)):
        expected = evaluate.inter_class_distances(x, labelling)
        assert {name: metrics[f"{kind}_{name}"] for name in DISTANCES} == {
            name: expected[name] for name in DISTANCES
        }
    assert metrics["distance_max_difference"] > metrics["class_distance_max_difference"]


def test_queries_are_searched_in_the_gallery(build: Build, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    for file in sorted(folder.rglob("0[5-8].png")):
        (file.parent / "gallery").mkdir(exist_ok=True)
        file.rename(file.parent / "gallery" / file.name)
    index = ingest(folder)
    evaluator, network = build(index, gallery="gallery"), network_with_a_head().eval()
    x, y = evaluator.encoder.features(network, evaluator.held_out), evaluator.labels
    assert y is not None
    inside = torch.tensor(["/gallery/" in index.paths[i] for i in evaluator.held_out.indices])
    expected = evaluate.recall_at_k(x[~inside], y[~inside], [1, 2], gallery=(x[inside], y[inside]))
    metrics = evaluator.backbone(network)
    assert (metrics["recall_at_1"], metrics["recall_at_2"]) == (expected[1], expected[2])
    with pytest.raises(ValueError, match=r"evaluate\.gallery: none of the .*CLASS/queries/FILE"):
        build(index, gallery="queries")


@pytest.mark.parametrize("name", ["simclr", "byol", "dino", "npair"])
def test_phi_distances_are_of_the_embeddings_that_the_loss_compares(
    build: Build, pictures: DatasetIndex, name: str
) -> None:
    torch.manual_seed(0)
    spec = resolved(pictures, method={"name": name})
    method = build_method(spec, num_classes=3)
    modes = [module.training for module in method.modules()]
    evaluator = build(pictures)
    metrics = evaluator.phi_distances(method)
    assert [module.training for module in method.modules()] == modes
    with eval_mode(method):
        phi = evaluator.encoder.features(
            lambda x: method([x, x][: spec.method.num_views])["embeddings"][0], evaluator.held_out
        )
    y = torch.tensor(pictures.labels)[evaluator.held_out.indices]
    for kind, labelling in (("distance", torch.arange(len(phi))), ("class_distance", y)):
        expected = evaluate.inter_class_distances(phi, labelling)
        for statistic in DISTANCES:
            value = metrics[f"phi_{kind}_{statistic}"]
            assert value == pytest.approx(expected[statistic], abs=1e-4)
    backbone = evaluator.backbone(method.representation)
    assert abs(metrics["phi_distance_mean"] - backbone["distance_mean"]) > 1e-3


def test_subset_of_held_out_images_has_all_classes(
    build: Build, pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first three images of the index belong to one class.
    monkeypatch.setattr(evaluation, "HEALTH_LIMIT", 3)
    evaluator = build(pictures, knn={"bank": 6})
    network = network_with_a_head()
    metrics = evaluator.backbone(network)
    with eval_mode(network):
        x = evaluator.encoder.features(network, evaluator.held_out)[::3]
        bank = evaluator.encoder.features(network, evaluator.train)[::3]
    assert metrics["distance_mean"] == metrics["class_distance_mean"]
    assert metrics["uniformity"] == evaluate.uniformity(x)
    labels = torch.tensor(pictures.labels)
    expected = evaluate.knn_accuracy(
        bank,
        labels[evaluator.train.indices][::3],
        evaluator.encoder.features(network.eval(), evaluator.held_out),
        labels[evaluator.held_out.indices],
    )
    assert metrics["knn_top1"] == expected


class Kept:
    """Keeps what an evaluation shows."""

    bank: Tensor
    positions: np.ndarray
    phi: Tensor
    labels: Tensor | None

    def features(self, held_out: Tensor, bank: Tensor, positions: np.ndarray) -> None:
        self.bank, self.positions = bank, positions

    def embeddings(self, phi: Tensor, labels: Tensor | None) -> None:
        self.phi, self.labels = phi, labels


def test_plots_of_a_subset_have_its_labels(
    build: Build, pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "HEALTH_LIMIT", 3)
    evaluator, kept = build(pictures), Kept()
    evaluator.phi_distances(build_method(resolved(pictures), num_classes=3), observer=kept)
    assert kept.labels is not None
    assert len(kept.phi) == 3
    expected = np.asarray(pictures.labels)[evaluator.held_out.indices][::3]
    assert kept.labels.tolist() == expected.tolist()


@pytest.mark.parametrize(("bank", "images"), [(None, 18), (18, 18), (17, 9), (6, 6), (1, 1)])
def test_bank_holds_all_training_images_or_at_most_as_many_as_set(
    build: Build, pictures: DatasetIndex, bank: int | None, images: int
) -> None:
    metrics = build(pictures, knn={"bank": bank}).backbone(network_with_a_head())
    assert metrics["knn_bank"] == images


def test_bank_of_raw_pixels_has_a_limit(
    build: Build, pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a large data set would not fit in memory, whatever the backbone."""
    monkeypatch.setattr(evaluation, "RAW_BANK_LIMIT", 6)
    evaluator = build(pictures)
    assert evaluator.raw_pixels()["knn_bank"] == 6
    assert evaluator.backbone(network_with_a_head())["knn_bank"] == 18
    assert build(pictures, knn={"bank": 3}).raw_pixels()["knn_bank"] == 3


def test_long_evaluations_say_that_they_are_alive(
    build: Build, pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = build(pictures, clustering={"restarts": 7})
    beats: list[None] = []
    monkeypatch.setattr(
        evaluator.encoder, "features", lambda _, images, view=None: torch.rand(len(images), 4)
    )
    monkeypatch.setattr(
        evaluator.encoder, "local_features", lambda _, images, mine, d: torch.rand(len(images), d)
    )
    evaluator.encoder.check = lambda: beats.append(None)
    evaluator.raw_pixels()
    assert len(beats) == 1 + 7, "a block of k-NN, and each start of k-means"


def test_clusters_are_the_best_of_all_starts(
    build: Build, pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def record(
        x: Tensor, y: Tensor, restarts: int, on_start: Callable[[], None]
    ) -> dict[str, float]:
        starts.append(restarts)
        return {}

    monkeypatch.setattr(evaluation, "clustering_metrics", record)
    for clustering in (False, True, {"restarts": 3}):
        build(pictures, clustering=clustering).raw_pixels()
    assert starts == [10, 3]


def test_evaluator_without_labels_skips_label_metrics(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=0, per_class=12))
    evaluator = build(index, linear=True, finetune=True, clustering=True)
    metrics = evaluator.backbone(network_with_a_head(), final=True)
    assert metrics.keys() == {
        *("alignment", "uniformity", "effective_rank", "dimension_std", "mean_norm"),
        "instance_recall_at_1",
        *(f"distance_{name}" for name in DISTANCES),
    }
    assert evaluator.chance() == {"instance_recall_at_1": 1 / 4}
    monkeypatch.setattr(evaluation, "HEALTH_LIMIT", 3)
    assert evaluator.chance() == {"instance_recall_at_1": 1 / 2}


def features_on_some_ranks(root: str, view: int | None) -> np.ndarray:
    index = DatasetIndex.load(Path(root) / "index")
    canvases = Canvases(index, 16, 3, cache=Path(root) / "cache", threads=1)
    images = ImageSet(canvases, np.arange(len(index)))
    evaluator = evaluator_of(resolved(index), images, images)
    with pytest.MonkeyPatch.context() as patch, eval_mode(network_with_a_head()) as network:
        patch.setattr("dasl_core.train.features.FEATURE_BATCH", 4)  # several batches per rank
        features = evaluator.encoder.features(network, images, view).numpy()
    canvases.close()
    return features


@pytest.mark.parametrize("view", [None, 1])
def test_feature_order_does_not_depend_on_ranks(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path, view: int | None
) -> None:
    """Includes random views, which are the same for any number of ranks."""
    pictures.save(tmp_path / "index")
    (alone,) = pool.call(1, features_on_some_ranks, str(tmp_path), view)
    assert alone.shape == (27, 6)
    for rank in pool.call(4, features_on_some_ranks, str(tmp_path), view):
        np.testing.assert_allclose(rank, alone, atol=1e-6)


def bank_on_some_ranks(root: str) -> tuple[np.ndarray, np.ndarray]:
    index = DatasetIndex.load(Path(root) / "index")
    canvases = Canvases(index, 16, 3, cache=Path(root) / "cache", threads=1)
    images, kept = ImageSet(canvases, np.arange(len(index))), Kept()
    evaluator = evaluator_of(resolved(index), images, images)
    evaluator.frozen(network_with_a_head(), observer=kept)
    canvases.close()
    return kept.bank.numpy(), kept.positions


def test_bank_of_uneven_ranks_has_every_image(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path
) -> None:
    pictures.save(tmp_path / "index")
    ((alone, _),) = pool.call(1, bank_on_some_ranks, str(tmp_path))
    banks, positions = zip(*pool.call(4, bank_on_some_ranks, str(tmp_path)), strict=True)
    assert [len(bank) for bank in banks] == [7, 7, 7, 6]
    np.testing.assert_array_equal(np.concatenate(positions), np.arange(27))
    np.testing.assert_allclose(np.concatenate(banks), alone, atol=1e-6)
