"""The training loop: results, reports and errors."""

import errno
import json
import math
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dasl_core.data.index import DatasetIndex
from dasl_core.data.split import split
from dasl_core.methods import REGISTRY
from dasl_core.spec import REGULARIZERS, Holdout, ResolvedJobSpec
from dasl_core.train.collapse import CollapsedError
from dasl_core.train.evaluation import DISTANCES, Evaluator
from dasl_core.train.optim import learning_rate
from dasl_core.train.outcomes import DivergedError
from dasl_core.train.serialization import load_state
from tests.support.training_world import (
    KIN,
    Recorder,
    assert_same,
    families_first,
    image_folder,
    ingest,
    open_trainer,
    recorded,
    resolved,
    run,
    skip_plots,
    supported,
)

pytestmark = pytest.mark.usefixtures("without_plots")
STEPS, TOTAL = 3, 9  # of `training_world.tiny_spec` on `pictures`: 24 images, batch 8, 3 epochs
# Metrics that only the last step of a report has.
SHARES = {f"share{which}_{name}" for which in ("", "_cosine") for name in ("dar", "sec")}
SELDOM = {
    *("angular_update", "embedding_distance", "embedding_distance_std", "embedding_rank"),
    *SHARES,
}


@pytest.fixture(scope="module")
def usual(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    """A run with the settings of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        skip_plots(patch)
        return recorded(resolved(pictures), pictures, cache, tmp_path_factory.mktemp("usual"))


# --- the loss


@pytest.mark.parametrize(
    "method", families_first(sorted(REGISTRY.keys() - KIN.keys()), ("byol", "proxy_anchor"))
)
def test_zero_regularizer_weight_is_bit_identical_to_none(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str
) -> None:
    spec = {"method": {"name": method}, "train": {"epochs": 2}}
    without = {"dar": {"weight": 0, "labels": "cluster"}, "sec": {"weight": 0}}
    others = [name for name, config in REGULARIZERS.items() if not config.top_level]
    without |= {"regularizers": {name: {"weight": 0} for name in others}}
    plain = recorded(resolved(pictures, **spec), pictures, cache, tmp_path / "plain")
    zero = recorded(
        resolved(pictures, **spec, **supported(method, **without)),
        pictures,
        cache,
        tmp_path / "zero",
    )
    states = [load_state(reporter.last_checkpoint) for reporter in (plain, zero)]
    assert_same(states[0]["method"], states[1]["method"], "method")
    assert plain.curve() == zero.curve()
    assert plain.points[0]["values"].keys() == zero.points[0]["values"].keys()


def test_loss_is_sum_of_reported_terms(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    spec = resolved(pictures, dar={"weight": 0.1}, sec={"weight": 0.5}, train={"precision": "fp64"})
    reporter = recorded(spec, pictures, cache, tmp_path)
    for point in reporter.points:
        values = point["values"]
        measured = {name for name in values if name.startswith("time_")}
        assert values.keys() - SELDOM - measured - {"cpu_utilization", "memory"} == {
            *("loss", "loss_simclr", "loss_dar", "loss_sec", "gradient_norm", "lr", "dar_columns"),
            *(f"embedding_norm{which}" for which in ("", "_std", "_min", "_max")),
            *("embedding_std", "images_per_second"),
        }
        terms = values["loss_simclr"] + values["loss_dar"] + values["loss_sec"]
        assert values["loss"] == pytest.approx(terms, abs=1e-12)
        assert all(math.isfinite(value) for value in values.values())
        assert values["embedding_norm"] > 0
        assert 0 < values["embedding_std"] < 1
    last = reporter.points[-1]["values"]
    assert last.keys() >= SELDOM
    assert 0 < last["embedding_distance_std"] < last["embedding_distance"] < 2
    assert 1 < last["embedding_rank"] <= 8
    assert reporter.points[0]["values"]["loss_sec"] == 0  # the ramp begins at 0
    assert reporter.curve("loss_sec")[-1] > 0


def test_views_differ_within_and_between_steps(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures)
    this = open_trainer(spec, pictures, cache, tmp_path)
    batch = next(this.loader.epoch(0))
    views = [view for step in (0, 1) for view in this.prefetcher.maker.make(batch, step)]
    assert all(view.shape == (8, 3, 16, 16) for view in views)
    for number, view in enumerate(views):
        for other in views[:number]:
            assert (view != other).flatten(1).any(dim=1).all()
    assert torch.equal(this.prefetcher.maker.make(batch, 1)[1], views[3])
    this.close()


def test_run_trains_every_weight(usual: Recorder) -> None:
    first, last = (load_state(folder)["method"] for _, folder, _ in usual.checkpoints[::2])
    unchanged = [name for name in first if torch.equal(first[name], last[name])]
    assert unchanged == []


def test_training_lowers_loss(tmp_path: Path, cache: Path) -> None:
    root = image_folder(tmp_path / "pictures", classes=4, per_class=12)
    index = ingest(root)
    spec = resolved(
        index,
        train={"epochs": 12, "batch_size": 16, "checkpoint_every_epochs": 12},
        augment={"jitter": 0.1, "grayscale": 0},
    )
    reporter = recorded(spec, index, cache, tmp_path / "kept")
    losses = load_state(reporter.last_checkpoint)["progress"]["losses"]
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.2


# --- reports


def test_progress_and_schedule(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    spec = resolved(pictures, train={"warmup_epochs": 1, "optimizer": {"name": "sgd", "lr": 0.25}})
    reporter = recorded(spec, pictures, cache, tmp_path)
    rates = reporter.curve("lr")
    assert rates == [learning_rate(step, STEPS, spec.train) for step in range(TOTAL)]
    assert rates[:4] == [0.0625, 0.125, 0.1875, 0.25]
    last = reporter.progresses[-1]
    assert (last["step"], last["total_steps"], last["epoch"], last["epochs"]) == (9, 9, 3.0, 3)
    assert last["eta_seconds"] == 0
    assert last["images_per_second"] > 0
    # Before the first evaluation, not those of the untrained network.
    assert {reporter.progresses[0][name] for name in ("knn", "recall_at_1")} == {None}
    # From the evaluation after the last step, not the one before it.
    _, _, _, newest = reporter.evaluations[-1]
    assert (last["knn"], last["recall_at_1"]) == (newest["knn_top1"], newest["recall_at_1"])
    assert [point["time"] for point in reporter.points] == sorted(
        point["time"] for point in reporter.points
    )


def test_evaluations_cover_pixels_untrained_and_trained(usual: Recorder) -> None:
    evaluations = [(step, epoch, subject) for step, epoch, subject, _ in usual.evaluations]
    assert evaluations == [
        (0, 0, "raw"),
        (0, 0, "untrained"),
        (6, 2, "backbone"),
        (9, 3, "backbone"),
    ]
    shares = {"knn_top1", "recall_at_1", "recall_at_2", "instance_recall_at_1"}
    knn_settings = {"knn_k": 20, "knn_temperature": 0.07, "knn_bank": 24}
    health = {
        *("alignment", "uniformity", "effective_rank", "dimension_std", "mean_norm"),
        *(f"{kind}_{name}" for kind in ("distance", "class_distance") for name in DISTANCES),
    }
    phi = {f"phi_{name}" for name in health if "distance" in name}
    for _, _, subject, metrics in usual.evaluations:
        known = shares | knn_settings.keys()
        assert metrics.keys() == (known if subject == "raw" else known | health | phi)
        assert {name: metrics[name] for name in knn_settings} == knn_settings
        assert all(math.isfinite(value) for value in metrics.values())
        assert all(0 <= metrics[name] <= 1 for name in shares)
    content = json.loads((usual.last_checkpoint / "metrics.json").read_text())
    assert [e["subject"] for e in content["evaluations"]] == [
        subject for _, _, subject in evaluations
    ]
    assert len(content["epoch_losses"]) == 3


def test_supervised_method_is_evaluated_on_its_embedding_and_backbone(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(
        pictures,
        method={"name": "npair"},
        train={"epochs": 1, "batch_size": 6},
        evaluate={"clustering": True, "linear": {"epochs": 2}, "finetune": {"epochs": 1}},
    )
    reporter = recorded(spec, pictures, cache, tmp_path)
    subjects = [subject for _, _, subject, _ in reporter.evaluations]
    assert subjects == ["raw", "untrained", "backbone", "embedding"]
    backbone, embedding = (metrics for _, _, _, metrics in reporter.evaluations[2:])
    tuned = {"finetune_top1", "finetune_top5"}
    phi = {name for name in backbone if name.startswith("phi_")}
    assert backbone.keys() == embedding.keys() | phi
    assert {name: backbone[name] for name in tuned} == {name: embedding[name] for name in tuned}
    assert {name: backbone[f"phi_{name}"] for name in embedding if "distance" in name} == (
        pytest.approx({name: value for name, value in embedding.items() if "distance" in name})
    )
    assert embedding["mean_norm"] == pytest.approx(1)
    assert backbone["uniformity"] != embedding["uniformity"]
    assert reporter.progresses[-1]["recall_at_1"] == embedding["recall_at_1"]
    assert reporter.latest == embedding | {"evaluated_step": reporter.points[-1]["step"]}
    card = (reporter.last_checkpoint / "README.md").read_text()
    assert "| metric | raw pixels | untrained | backbone, epoch 1 | embedding, epoch 1 |" in card


def test_evaluation_without_labels_has_label_free_metrics(tmp_path: Path, cache: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=0, per_class=20))
    reporter = recorded(resolved(index), index, cache, tmp_path / "kept")
    subjects = [subject for _, _, subject, _ in reporter.evaluations]
    assert subjects[:2] == ["raw", "untrained"]
    assert reporter.evaluations[0][3].keys() == {"instance_recall_at_1"}
    for _, _, _, metrics in reporter.evaluations[1:]:
        assert "effective_rank" in metrics
        assert not any(name.startswith(("knn", "recall")) for name in metrics)


def test_held_out_classes_have_retrieval_but_no_knn(tmp_path: Path, cache: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=6, per_class=5))
    spec = resolved(index, evaluate={"holdout": {"by": "class", "fraction": 0.34}})
    reporter = recorded(spec, index, cache, tmp_path / "kept")
    for _, _, _, metrics in reporter.evaluations:
        assert "recall_at_1" in metrics
        assert "knn_top1" not in metrics


def test_knn_tolerates_class_without_training_images(tmp_path: Path, cache: Path) -> None:
    root = image_folder(tmp_path / "pictures", classes=2, per_class=10)
    # 12 classes of one image each: some are held out.
    for number in range(12):
        folder = root / f"lonely-{number}"
        folder.mkdir()
        Image.new("RGB", (20, 24), (number, 0, 0)).save(folder / "0.png")
    index = ingest(root)
    spec = resolved(index, evaluate={"holdout": {"fraction": 0.3}})
    reporter = recorded(spec, index, cache, tmp_path / "kept")
    assert all("knn_top1" in metrics for _, _, _, metrics in reporter.evaluations)


def test_evaluation_on_another_data_set(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    other = ingest(image_folder(tmp_path / "other", per_class=4, size=(30, 10)))
    spec = resolved(pictures, evaluate={"dataset": "other"}, train={"epochs": 1, "batch_size": 27})
    reporter = recorded(spec, pictures, cache, tmp_path / "kept", evaluate_on=other)
    assert [point["step"] for point in reporter.points] == [1]  # all 27 images train
    assert "knn_top1" in reporter.evaluations[-1][3]  # classes are matched by name


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"method": {"name": "triplet"}}, "method.name"),
        ({"dar": {"weight": 0.1, "labels": "class"}}, "dar.labels"),
    ],
)
def test_single_training_class_is_refused(
    tmp_path: Path, cache: Path, parts: dict[str, Any], field: str
) -> None:
    folder = image_folder(tmp_path / "pictures", classes=2, per_class=12)
    for file in sorted((folder / "class-1").iterdir())[1:]:
        file.unlink()
    index = ingest(folder)
    # A share for which the only image of a class is held out.
    fraction = next(
        share / 100
        for share in range(10, 60)
        if 12 in split(index, Holdout(fraction=share / 100)).held_out
    )
    spec = resolved(index, evaluate={"holdout": {"fraction": fraction}}, **parts)
    with pytest.raises(ValueError, match=rf"{field}: needs at least two classes for training"):
        run(spec, index, cache, Recorder(tmp_path / "kept"))


def test_checkpoints_contain_no_pickle(usual: Recorder) -> None:
    saved = [(step, final) for step, _, final in usual.checkpoints]
    assert saved == [(3, False), (6, False), (9, True)]
    for _, folder, _ in usual.checkpoints:
        assert {file.name for file in folder.iterdir()} == {
            *("README.md", "backbone.safetensors", "certificate.json"),
            *("metrics.json", "model.json"),
            *("training_state.json", "training_state.safetensors"),
        }
        for file in folder.glob("*.json"):
            json.loads(file.read_text())
        for file in folder.glob("*.safetensors"):
            content = file.read_bytes()
            header = int.from_bytes(content[:8], "little")
            json.loads(content[8 : 8 + header])


# --- failures


@pytest.mark.parametrize("batch_size", [8, 24])  # detected by a later loss, or by an evaluation
def test_divergence_error_names_learning_rate(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, batch_size: int
) -> None:
    spec = resolved(
        pictures,
        train={
            "batch_size": batch_size,
            "optimizer": {"name": "sgd", "lr": 1e4, "weight_decay": 100},
        },
        evaluate={"every_epochs": 1},
    )
    reporter = Recorder(tmp_path)
    with pytest.raises(DivergedError, match=r"lower train\.optimizer\.lr than 10000"):
        run(spec, pictures, cache, reporter)
    assert not any(final for _, _, final in reporter.checkpoints)


def test_batch_larger_than_data_set_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, train={"batch_size": 24})
    fewer = ingest(image_folder(tmp_path / "fewer", per_class=3))
    with pytest.raises(ValueError, match=r"train\.batch_size is 24, but only 8 images"):
        run(spec, fewer, cache, None)


# --- collapse


def collapsing(index: DatasetIndex, collapse: str) -> ResolvedJobSpec:
    """Elementwise DAR with far too large a weight pulls all embeddings into one point."""
    return resolved(
        index,
        dar={"weight": 100.0, "difference": "abs"},
        train={
            "epochs": 20,
            "optimizer": {"name": "adamw", "lr": 0.01},
            "warmup_epochs": 0,
            "collapse": collapse,
        },
        evaluate={"knn": None, "retrieval": [], "every_epochs": 20},
    )


@pytest.mark.slow
def test_collapse_is_reported_and_stops_run_if_requested(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    warned = recorded(collapsing(pictures, "warn"), pictures, cache, tmp_path / "warned")
    kinds = {(kind, data.get("cause")) for kind, _, data in warned.events}
    assert kinds == {("collapse", "constant_output"), ("gradient_share", None)}

    stopping = collapsing(pictures, "stop")
    stopped = Recorder(tmp_path / "stopped")
    with pytest.raises(CollapsedError, match=r"nearly the same output.*dar\.weight"):
        run(stopping, pictures, cache, stopped)
    assert stopped.checkpoints[-1][0] == stopped.points[-1]["step"] < 60

    assert stopped.curve() == warned.curve()[: len(stopped.points)]

    # The run stays ended for the next process if this one was killed before reporting it.
    again = Recorder(tmp_path / "again")
    with pytest.raises(CollapsedError, match=r"nearly the same output.*dar\.weight"):
        run(stopping, pictures, cache, again, stopped.last_checkpoint)
    assert (again.points, again.checkpoints) == ([], [])

    ignored = recorded(collapsing(pictures, "ignore"), pictures, cache, tmp_path / "ignored")
    ((kind, message, data),) = ignored.events
    assert kind == "gradient_share"
    assert message.startswith("dar.weight: at 100, its gradient at the backbone's outputs is ")
    assert data["share"] > 0.5
    assert ignored.curve() == warned.curve()


def test_healthy_run_raises_no_collapse_alarm(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    reporter = recorded(resolved(pictures, train={"epochs": 20}), pictures, cache, tmp_path)
    assert reporter.events == []


@pytest.mark.slow
def test_supervised_class_collapse_raises_no_alarm(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three classes span two dimensions: a collapse in self-supervised training, but the goal in
    supervised training."""
    causes = {}
    for method in ("simclr", "npair"):
        ranks = chain([10.0], repeat(2.0))  # the untrained network's, then the trained one's
        monkeypatch.setattr(
            Evaluator, "backbone", lambda *_, ranks=ranks, **__: {"effective_rank": next(ranks)}
        )
        spec = resolved(
            pictures,
            method={"name": method},
            train={"epochs": 6},
            evaluate={"every_epochs": 1, "holdout": {"fraction": 0.5}},
        )
        reporter = recorded(spec, pictures, cache, tmp_path / method)
        causes[method] = [data["cause"] for kind, _, data in reporter.events if kind == "collapse"]
    assert causes == {"simclr": ["dimensional_collapse"], "npair": []}


# --- cluster labels


def test_clusters_become_labels_after_first_epoch(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, dar={"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}})
    reporter = recorded(spec, pictures, cache, tmp_path)
    spec = resolved(pictures, dar={"weight": 0.1})
    plain = recorded(spec, pictures, cache, tmp_path / "instance")
    assert reporter.curve("loss_dar")[:3] == plain.curve("loss_dar")[:3]
    assert reporter.curve("loss_dar")[3] != plain.curve("loss_dar")[3]
    clusterings = [p["values"] for p in reporter.points if "clusters_size_min" in p["values"]]
    assert len(clusterings) == 3
    assert all(0 <= values["clusters_nmi_classes"] <= 1 for values in clusterings)
    assert "clusters_nmi_previous" not in clusterings[0]
    assert 0 <= clusterings[1]["clusters_nmi_previous"] <= 1
    state = load_state(reporter.last_checkpoint)["clusters"]
    assert set(state["labels"][state["labels"] < 3].tolist()) == {0, 1, 2}


def test_failure_in_final_evaluation_loses_no_step(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe and fine-tuning may take hours and much memory; a checkpoint precedes them."""
    spec = resolved(
        pictures,
        train={"checkpoint_every_epochs": 2},
        evaluate={"linear": {"epochs": 2}, "finetune": {"epochs": 1}},
    )
    undisturbed, first, second = (Recorder(tmp_path / name) for name in ("u", "first", "second"))
    run(spec, pictures, cache, undisturbed)
    saved = [(step, final) for step, _, final in undisturbed.checkpoints]
    assert saved == [(6, False), (9, False), (9, True)]

    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("dasl_core.train.evaluation.fine_tune", fails)
        with pytest.raises(torch.OutOfMemoryError):
            run(spec, pictures, cache, first)
    assert [(step, final) for step, _, final in first.checkpoints] == saved[:2]

    assert run(spec, pictures, cache, second, first.last_checkpoint) == "succeeded"
    assert second.points == []
    assert [(step, final) for step, _, final in second.checkpoints] == saved[2:]
    ends = [
        json.loads((r.last_checkpoint / "metrics.json").read_text()) for r in (undisturbed, second)
    ]
    assert ends[0]["evaluations"] == ends[1]["evaluations"]
    assert "finetune_top1" in ends[1]["evaluations"][-1]["metrics"]
    states = [load_state(recorder.last_checkpoint) for recorder in (undisturbed, second)]
    for part in ("method", "optimizer"):
        assert_same(states[0][part], states[1][part], part)

    complete = recorded(spec, pictures, cache, tmp_path / "complete", second.last_checkpoint)
    assert (complete.points, complete.checkpoints) == ([], []), "nothing is left to do"


@pytest.mark.slow
def test_collapsed_run_killed_in_final_evaluation_repeats_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(27):
        folder = tmp_path / "grey" / f"class-{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (128, 128, 128)).save(folder / f"{number}.png")
    # Near-duplicates would all be on one side.
    index = replace(ingest(tmp_path / "grey"), duplicate_of=None)
    spec = resolved(
        index,
        method={"name": "byol"},
        backbone={"name": "test_vit"},
        augment={"jitter_probability": 0, "grayscale": 0, "blur": 0, "solarize": 0},
        train={"epochs": 4, "batch_size": 12, "collapse": "stop"},
        evaluate={"linear": {"epochs": 2}, "every_epochs": 20},
    )
    undisturbed, first, second = (Recorder(tmp_path / name) for name in ("u", "first", "second"))
    with pytest.raises(CollapsedError):
        run(spec, index, cache, undisturbed)
    assert undisturbed.points[-1]["step"] == undisturbed.evaluations[-1][0] == 8, "the last one"

    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("dasl_core.train.evaluation.linear_probe", fails)
        with pytest.raises(torch.OutOfMemoryError):
            run(spec, index, cache, first)
    assert not first.checkpoints[-1][2]
    with pytest.raises(CollapsedError):
        run(spec, index, cache, second, first.last_checkpoint)
    assert second.evaluations == undisturbed.evaluations[-1:]
    assert second.checkpoints[-1][2], "final"


def test_full_disk_before_final_evaluation_does_not_fail_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    class FullForAWhile(Recorder):
        def checkpoint(
            self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
        ) -> None:
            if step == 9 and not final:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().checkpoint(folder, step, epoch, metrics, final)

    reporter = FullForAWhile(tmp_path)
    spec = resolved(pictures, evaluate={"linear": {"epochs": 2}})
    assert run(spec, pictures, cache, reporter) == "succeeded"
    assert [kind for kind, _, _ in reporter.events] == ["checkpoint_failed"]
    assert "linear_top1" in reporter.evaluations[-1][3]
    assert reporter.checkpoints[-1][::2] == (9, True)


def test_evaluation_sends_keepalives(
    usual: Recorder, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """Otherwise a long evaluation would be mistaken for a hanging run."""
    assert usual.worked > 0
    spec = resolved(pictures, evaluate={"linear": {"epochs": 30}, "finetune": {"epochs": 2}})
    assert recorded(spec, pictures, cache, tmp_path).worked >= usual.worked + 32
