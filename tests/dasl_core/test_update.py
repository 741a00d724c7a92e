"""Clipping, loss scaling, and skipped steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Outputs
from dasl_core.methods.simclr import SimCLR
from dasl_core.spec import Clip, JobSpec
from dasl_core.spec.errors import field_problems
from dasl_core.train.outcomes import DivergedError
from dasl_core.train.serialization import load_state
from dasl_core.train.update import Updater, clip_each
from tests.support.training_world import Recorder, recorded, resolved, run, run_and_resume

pytestmark = pytest.mark.usefixtures("without_plots")


def updater(model: nn.Module, clip: Clip | None = None, scaled: bool = False) -> Updater:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Updater(optimizer, clip, list(model.buffers()), torch.device("cpu"), scaled=scaled)


def with_gradients(*values: list[float]) -> nn.Module:
    model = nn.Module()
    for number, value in enumerate(values):
        weight = nn.Parameter(torch.zeros(len(value)))
        weight.grad = torch.tensor(value)
        model.register_parameter(f"w{number}", weight)
    return model


def moved(model: nn.Module) -> list[list[float]]:
    return [[-x for x in weight.tolist()] for weight in model.parameters()]


def test_updater_clips_global_norm() -> None:
    model = with_gradients([3.0, 0.0], [0.0, 4.0])
    norm, updated = updater(model, Clip(norm=1.0)).apply()
    assert (float(norm), updated) == (5.0, True)
    assert moved(model) == [
        pytest.approx([0.6, 0.0], rel=1e-5),
        pytest.approx([0.0, 0.8], rel=1e-5),
    ]
    model = with_gradients([3.0, 0.0], [0.0, 4.0])
    updater(model, Clip(norm=10.0)).apply()
    assert moved(model) == [[3.0, 0.0], [0.0, 4.0]]


def test_updater_clips_each_gradient() -> None:
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4]), torch.zeros(2)]
    clip_each(gradients, 1.0)
    assert gradients[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    assert gradients[1].tolist() == pytest.approx([0.3, 0.4])  # shorter already: left as it is
    assert gradients[2].tolist() == [0, 0]


def test_updater_clips_values() -> None:
    model = with_gradients([3.0, -30.0], [0.5, 11.0])
    norm, _ = updater(model, Clip(value=10.0)).apply()
    assert float(norm) == pytest.approx(32.1, rel=1e-3)
    assert moved(model) == [[3.0, -10.0], [0.5, 10.0]]


@pytest.mark.parametrize(
    ("clip", "field"),
    [
        ({}, "train.clip"),
        ({"norm": 1.0, "value": 1.0}, "train.clip"),
        ({"value": 1.0, "each": True}, "train.clip.each"),
    ],
)
def test_clipping_without_one_limit_is_refused(clip: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        JobSpec.model_validate({"dataset": "x", "train": {"clip": clip}})
    assert {problem.field for problem in field_problems(raised.value)} == {field}


def test_non_finite_gradient_restores_buffers() -> None:
    model = with_gradients([1.0, float("nan")], [1.0, 1.0])
    model.register_buffer("statistics", torch.tensor([2.0]))
    applied = updater(model)
    applied.snapshot_buffers()
    model.get_buffer("statistics").fill_(float("nan"))
    norm, updated = applied.apply()
    assert not torch.isfinite(norm)
    assert not updated
    assert moved(model) == [[0, 0], [0, 0]]
    assert model.get_buffer("statistics").tolist() == [2.0]
    assert all(weight.grad is None for weight in model.parameters())


def test_scaled_loss_gives_same_step_and_overflow_halves_scale() -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    applied = updater(model, Clip(norm=0.5), scaled=True)
    applied.scaler.scale(model(torch.tensor([3.0, 4.0])).sum()).backward()
    assert model.weight.grad is not None
    assert model.weight.grad.abs().max() > 1e5
    applied.unscale()
    norm, updated = applied.apply()
    assert (float(norm), updated) == (5.0, True)
    torch.testing.assert_close(before - model.weight, torch.tensor([[0.3, 0.4]]), rtol=1e-4, atol=0)
    scale = applied.scaler.get_scale()
    applied.scaler.scale(model(torch.tensor([float("inf"), 4.0])).sum()).backward()
    applied.unscale()
    assert applied.apply()[1] is False
    assert applied.scaler.get_scale() == scale / 2


# --- in a run


def poisoned(steps: set[int]) -> Any:
    """SimCLR's forward with NaN outputs and running statistics in some steps."""
    forward, calls = SimCLR.forward, [0]

    def broken(method: SimCLR, views: Sequence[Tensor]) -> Outputs:
        if method.training:
            calls[0] += 1
            if calls[0] in steps:
                views = [view * float("nan") for view in views]
        return forward(method, views)

    return broken


def test_skipped_step_is_reported_with_its_images(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimCLR, "forward", poisoned({5}))
    spec = resolved(pictures, sec={"weight": 0.1}, train={"optimizer": {"name": "sgd", "lr": 0.01}})
    reporter = recorded(spec, pictures, cache, tmp_path)
    ((kind, message, data),) = reporter.events
    assert kind == "step_skipped"
    assert "step 5 was skipped" in message
    assert (data["step"], data["skipped"], len(data["images"])) == (5, 1, 8)
    assert set(data["images"]) <= set(pictures.paths)
    state = load_state(reporter.last_checkpoint)
    for name, value in (state["method"] | state["criterion"]["sec"]).items():
        assert torch.isfinite(value).all(), name
    assert state["progress"]["skipped"] == 1
    assert len(state["progress"]["losses"]) == 3
    assert all(loss == loss for loss in state["progress"]["losses"])  # the mean of the others


@pytest.mark.parametrize("limit", [0, 2])
def test_too_many_skipped_steps_fail_run_and_name_images(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(SimCLR, "forward", poisoned({2, 4, 5, 6, 7, 8, 9}))
    spec = resolved(pictures, train={"skip_not_finite": limit})
    reporter = Recorder(tmp_path)
    with pytest.raises(DivergedError, match=rf"{limit + 1} steps in a row.*class-\d/\d+\.png"):
        run(spec, pictures, cache, reporter)
    assert reporter.events[-1][2]["step"] == (2 if limit == 0 else 6)


@pytest.mark.slow
def test_float16_resumes_with_its_loss_scale(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, dar={"weight": 0.1}, train={"precision": "fp16"})
    recorders = run_and_resume(spec, pictures, cache, tmp_path, 4)
    states = [load_state(each.last_checkpoint) for each in recorders]
    assert states[0]["scaler"] == states[1]["scaler"] != {}


def test_skipped_step_is_not_in_cluster_bank(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimCLR, "forward", poisoned({5}))
    spec = resolved(pictures, dar={"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}})
    reporter = recorded(spec, pictures, cache, tmp_path)
    sizes = reporter.curve("clusters_size_max")
    assert len(sizes) == 3
    figures = [point["values"] for point in reporter.points if "clusters_cosine" in point["values"]]
    assert all(0 < values["clusters_cosine"] <= 1 for values in figures)
    # 24 images train: the second epoch clusters the 16 of its two good steps.
    sums = [values["clusters_largest_share"] for values in figures]
    assert sizes[1] == pytest.approx(16 * sums[1])


def test_search_for_loss_scale_does_not_count_as_skipped(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """The first scale is too large for so small a network, regardless of the images."""
    spec = resolved(pictures, train={"precision": "fp16", "skip_not_finite": 0})
    reporter = recorded(spec, pictures, cache, tmp_path)
    assert reporter.events == []
    scale = load_state(reporter.last_checkpoint)["scaler"]["scale"]
    assert 1 <= scale < 65536


def test_epoch_of_skipped_steps_does_not_cluster(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimCLR, "forward", poisoned({1, 2, 3}))
    spec = resolved(pictures, dar={"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}})
    reporter = recorded(spec, pictures, cache, tmp_path)
    assert len(reporter.curve("clusters_size_max")) == 2


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"skip_not_finite": 10}, "none of the 3 steps had finite gradients"),
        ({"precision": "fp16"}, "no loss scale of float16 was found in 3 steps"),
    ],
)
def test_run_of_skipped_steps_fails(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    train: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(SimCLR, "forward", poisoned({1, 2, 3}))
    reporter = Recorder(tmp_path)
    with pytest.raises(DivergedError, match=reason):
        run(resolved(pictures, train={"epochs": 1} | train), pictures, cache, reporter)
    assert not reporter.checkpoints
