"""Resuming: a stopped run continues bit for bit like an uninterrupted one."""

import functools
import itertools
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.data.split import split
from dasl_core.methods import REGISTRY, Outputs
from dasl_core.methods.simclr import SimCLR
from dasl_core.train import checkpointing
from dasl_core.train.serialization import load_state
from dasl_core.vocabulary import Desired
from tests.support.training_world import (
    Recorder,
    assert_same,
    ingest,
    recorded,
    resolved,
    run,
    supported,
)

pytestmark = pytest.mark.usefixtures("without_plots")
STEPS, TOTAL = 3, 9  # of `tiny_spec` on `pictures`: 24 images, batch 8, 3 epochs


def stop_at(step: int, how: Desired = "cancel") -> Callable[[int], Desired]:
    return lambda started: how if started >= step else "run"


def assert_same_state(one: Path, other: Path) -> None:
    """Compare all state that the next step depends on, bit for bit."""
    states = [load_state(folder) for folder in (one, other)]
    for part in ("method", "criterion", "clusters", "optimizer", "scaler", "ranks"):
        assert_same(states[0][part], states[1][part], part)
    for name in ("step", "losses", "epoch_loss_sum", "evaluations", "skipped", "collapse"):
        assert states[0]["progress"][name] == states[1]["progress"][name], name


IN_PARTS: dict[str, dict[str, Any]] = {
    # Includes the state of the method and the regularizers between steps, and at the second epoch what
    # some methods begin there. What the others begin and evaluations leave does not depend on the method.
    method: {
        "method": {"name": method},
        "train": {"micro_batches": 2, "epochs": 2},
        "evaluate": {"holdout": None},
        **supported(
            method,
            dar={"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}},
            sec={"weight": 0.5, "momentum": 0.4},
        ),
    }
    for method in REGISTRY
}
VARIANTS: dict[str, dict[str, Any]] = IN_PARTS | {
    "sgd-dar-sec": {
        "dar": {"weight": 0.1},
        "sec": {"weight": 0.5, "momentum": 0.4},
        "train": {"optimizer": {"name": "sgd", "lr": 0.05}},
    },
    "lars-dar": {
        "dar": {"weight": 0.1, "difference": "abs"},
        "train": {"optimizer": {"name": "lars", "lr": 0.5}},
    },
    "adamw-vit-blur": {
        "backbone": {"name": "test_vit"},
        "augment": {"blur": 0.5},
        "train": {"optimizer": {"name": "adamw", "lr": 1e-3}},
    },
    # On the 1 x 1 pixels that the standard stem leaves, torch's bfloat16 gradients on a CPU differ from run to
    # run, and are not always finite.
    "bf16": {"backbone": {"stem": "small"}, "train": {"precision": "bf16"}},
}


Whole = Callable[[str], Recorder]


@pytest.fixture(scope="module")
def whole(pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """From a variant to its run that nothing stops, which is made once."""

    @functools.cache
    def reports(variant: str) -> Recorder:
        spec = resolved(pictures, **VARIANTS[variant])
        return recorded(spec, pictures, cache, tmp_path_factory.mktemp("whole"))

    return reports


@pytest.mark.parametrize(
    ("variant", "stop"),  # within epochs, and between two
    [
        ("sgd-dar-sec", 5),
        pytest.param("lars-dar", 1, marks=pytest.mark.slow),
        ("adamw-vit-blur", 6),
        pytest.param("bf16", 7, marks=pytest.mark.slow),
        # Within the second epoch, after what methods and clusters begin at its start.
        *(
            pytest.param(
                *(method, STEPS + 1 + number % 2),
                marks=[] if method in ("dino", "pcl") else pytest.mark.slow,
            )
            for number, method in enumerate(REGISTRY)
        ),
    ],
)
def test_cancelled_run_resumes_bit_exactly(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, whole: Whole, variant: str, stop: int
) -> None:
    spec = resolved(pictures, **VARIANTS[variant])
    total = STEPS * spec.train.epochs
    undisturbed = whole(variant)

    stopped = Recorder(tmp_path / "stopped", stop_at(stop))
    assert run(spec, pictures, cache, stopped) == "cancelled"
    assert stopped.checkpoints[-1][0] == stop
    torch.rand(7)  # stands for other random draws of this process
    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", stopped.last_checkpoint)

    assert_same_state(undisturbed.last_checkpoint, resumed.last_checkpoint)
    assert stopped.curve() + resumed.curve() == undisturbed.curve()
    steps = [p["step"] for p in stopped.points + resumed.points if "loss" in p["values"]]
    assert steps == list(range(1, total + 1))
    assert stopped.evaluations + resumed.evaluations == undisturbed.evaluations
    # Messages show the position of the run, and that it does not start from scratch.
    phases = [name for name, _ in undisturbed.phases]
    evaluated = ["baselines", "training", "final"] if spec.evaluate.holdout else ["training"]
    assert phases == ["reading", *evaluated]
    left = [name for name in phases if name != "baselines"]
    assert [name for name, _ in resumed.phases] == left
    assert resumed.phases[1][1] == f"Training resumes after step {stop}; {total} steps in total"
    weights = [r.last_checkpoint / "backbone.safetensors" for r in (undisturbed, resumed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    "variant",
    [
        "sgd-dar-sec",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pcl", "bf16", "dino")),
    ],
)
def test_checkpoints_by_time_change_nothing_and_resume_bit_exactly(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Whole,
    variant: str,
) -> None:
    """Save before each step within an epoch, as if the steps took minutes."""
    undisturbed = whole(variant)
    spec = resolved(pictures, checkpoints={"every_minutes": 5}, **VARIANTS[variant])
    total = STEPS * spec.train.epochs
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "monotonic", itertools.count(0, 301).__next__)
        saving = recorded(spec, pictures, cache, tmp_path / "saving")
    assert [step for step, _, _ in saving.checkpoints] == list(range(1, total + 1))
    assert_same_state(undisturbed.last_checkpoint, saving.last_checkpoint)
    assert saving.curve() == undisturbed.curve()
    assert saving.evaluations == undisturbed.evaluations

    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", saving.folder / "step-4")
    assert_same_state(undisturbed.last_checkpoint, resumed.last_checkpoint)
    assert saving.curve()[:4] + resumed.curve() == undisturbed.curve()


@pytest.mark.parametrize(
    ("minutes", "steps"), [(None, []), (5, [2, 5, 8]), (4.9, [1, 2, 4, 5, 7, 8])]
)
def test_checkpoints_by_time_are_due_after_minutes_without_one(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minutes: float | None,
    steps: list[int],
) -> None:
    spec = resolved(
        pictures,
        checkpoints={"every_minutes": minutes},
        train={"checkpoint_every_epochs": 3},
        evaluate={"holdout": None, "every_epochs": 3},
    )
    monkeypatch.setattr(checkpointing, "monotonic", itertools.count(0, 299).__next__)
    reporter = recorded(spec, pictures, cache, tmp_path / "out")
    assert [step for step, _, _ in reporter.checkpoints][:-1] == steps


def test_random_state_of_network_is_resumed(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = SimCLR.forward

    def noisy(method: SimCLR, views: Sequence[Tensor]) -> Outputs:
        return forward(method, [F.dropout(view) for view in views])  # from the global generator

    monkeypatch.setattr(SimCLR, "forward", noisy)
    spec = resolved(pictures)
    undisturbed = recorded(spec, pictures, cache, tmp_path / "undisturbed")
    stopped = Recorder(tmp_path / "stopped", stop_at(4))
    run(spec, pictures, cache, stopped)
    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", stopped.last_checkpoint)
    assert stopped.curve() + resumed.curve() == undisturbed.curve()


def test_killed_run_resumes_from_last_checkpoint(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, whole: Whole
) -> None:
    class Killed(BaseException):
        pass

    def kill(started: int) -> Desired:
        if started == 5:
            raise Killed
        return "run"

    spec = resolved(pictures, **VARIANTS["sgd-dar-sec"])
    killed = Recorder(tmp_path / "killed", kill)
    with pytest.raises(Killed):
        run(spec, pictures, cache, killed)
    assert [step for step, _, _ in killed.checkpoints] == [3]
    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", killed.last_checkpoint)
    assert_same_state(whole("sgd-dar-sec").last_checkpoint, resumed.last_checkpoint)


@pytest.mark.slow
def test_run_can_be_stopped_repeatedly(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, whole: Whole
) -> None:
    spec, undisturbed = resolved(pictures, **VARIANTS["sgd-dar-sec"]), whole("sgd-dar-sec")
    at, losses = None, []
    for step in range(1, TOTAL + 1):
        part = Recorder(tmp_path / str(step), stop_at(1))
        outcome = run(spec, pictures, cache, part, at)
        at = part.last_checkpoint
        losses += part.curve()
    assert outcome == "succeeded"  # the desired state is not polled after the last step
    assert losses == undisturbed.curve()
    assert at is not None
    assert_same_state(undisturbed.last_checkpoint, at)


def test_resuming_finished_run_only_repeats_its_final_reports(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, whole: Whole
) -> None:
    spec, finished = resolved(pictures, **VARIANTS["sgd-dar-sec"]), whole("sgd-dar-sec")
    again = recorded(spec, pictures, cache, tmp_path, finished.last_checkpoint)
    assert (again.points, again.checkpoints) == ([], [])
    last = finished.evaluations[-1]
    assert again.evaluations == [e for e in finished.evaluations if e[0] == last[0]]
    assert again.verdicts == finished.verdicts


def test_checkpoint_with_other_settings_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    stopped = Recorder(tmp_path / "stopped", stop_at(1))
    fixed = {"train": {"optimizer": {"name": "sgd", "lr": 0.05}}}
    run(resolved(pictures, **fixed), pictures, cache, stopped)
    other: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"train": {"optimizer": {"name": "adamw"}}},
            r"train\.optimizer\.name is 'adamw', and was 'sgd'",
        ),
        ({"train": {"seed": 4}}, r"exactly: train\.seed is 4, and was 3;"),
        (
            {"backbone": {"name": "test_vit"}},
            r"backbone\.name is 'test_vit', and was 'test_resnet'",
        ),
        (
            {"dar": {"weight": 1}, "sec": {}},
            r"dar is \{.*, and was null; sec is \{.*, and was null$",
        ),
        (
            {"evaluate": {"holdout": {"fraction": 0.2}}},
            r"exactly: 22 images to train on, which were 24$",
        ),
    )
    for changes, named in other:
        spec = resolved(pictures, **(fixed | changes))
        with pytest.raises(ValueError, match=f"other settings.*{named}"):
            run(spec, pictures, cache, None, stopped.last_checkpoint)


def test_checkpoint_with_other_images_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """The same number of images with other names, of which others are held out."""
    stopped = Recorder(tmp_path / "stopped", stop_at(1))
    spec = resolved(pictures)
    run(spec, pictures, cache, stopped)
    folder = tmp_path / "others"
    shutil.copytree(pictures.root, folder)
    (folder / "class-0" / "00.png").rename(folder / "class-0" / "000.png")
    others = ingest(folder)
    with pytest.raises(ValueError, match=r"other settings.*images differ in their names"):
        run(spec, others, cache, None, stopped.last_checkpoint)
    with pytest.raises(ValueError, match="dataset: its images differ from the checkpoint's"):
        run(spec, others, cache, None, stopped.last_checkpoint, branch=True)


def test_checkpoint_with_other_labels_is_refused(cache: Path, tmp_path: Path) -> None:
    """Of a list, whose labels can change while the names of the images stay."""
    names = [f"{number}.npy" for number in range(24)]
    for number, name in enumerate(names):
        np.save(tmp_path / name, np.full((32, 32), number, np.uint8))

    def labeled(*labels: str) -> DatasetIndex:
        rows = [f"{name},{labels[at % len(labels)]}" for at, name in enumerate(names)]
        (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
        return ingest(tmp_path / "list.csv")

    index, stopped = labeled("owl", "wren"), Recorder(tmp_path / "stopped", stop_at(1))
    spec = resolved(index)
    run(spec, index, cache, stopped)
    for labels, problem in (
        (("zebra", "wren"), "the classes differ, such as 'owl'"),
        (("owl", "wren", "wren"), "images have other labels"),
    ):
        with pytest.raises(ValueError, match=f"other settings.*{problem}"):
            run(spec, labeled(*labels), cache, None, stopped.last_checkpoint)
    run(spec, labeled("owl", "wren"), cache, None, stopped.last_checkpoint)


@pytest.mark.parametrize("change", ["lost", "added"])
def test_held_out_images_may_change_before_resume(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, change: str
) -> None:
    """They precede the training images in the index, whose clusters must not shift with them."""
    changes = {
        "dar": {"weight": 0.5, "labels": "cluster", "clusters": {"k": 3}},
        "evaluate": {"holdout": {"by": "class", "fraction": 0.3}},
    }
    spec = resolved(pictures, **changes)
    undisturbed, resumed = Recorder(tmp_path / "undisturbed"), Recorder(tmp_path / "resumed")
    run(spec, pictures, cache, undisturbed)
    stopped = Recorder(tmp_path / "stopped", stop_at(4))
    run(spec, pictures, cache, stopped)
    folder = tmp_path / "changed"
    shutil.copytree(pictures.root, folder)
    (held_out,) = {
        pictures.paths[sample].split("/")[0]
        for sample in split(pictures, spec.evaluate.holdout).held_out
    }
    assert held_out == "class-0", "the first; else choose another seed"
    if change == "lost":
        (folder / held_out / "03.png").unlink()
    else:
        shutil.copy(folder / held_out / "03.png", folder / held_out / "030.png")
    index = ingest(folder)
    run(resolved(index, **changes), index, cache, resumed, stopped.last_checkpoint)
    assert stopped.curve() + resumed.curve() == undisturbed.curve()


def test_damaged_checkpoint_is_refused(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    stopped = Recorder(tmp_path / "stopped", stop_at(1))
    spec = resolved(pictures)
    run(spec, pictures, cache, stopped)
    file = stopped.last_checkpoint / "training_state.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no readable training state"):
        run(spec, pictures, cache, None, stopped.last_checkpoint)


# --- stopping


@pytest.mark.parametrize(("how", "outcome"), [("cancel", "cancelled"), ("pause", "paused")])
def test_stop_takes_effect_at_next_step_and_saves(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, how: Desired, outcome: str
) -> None:
    reporter = Recorder(tmp_path, stop_at(4, how))
    assert run(resolved(pictures), pictures, cache, reporter) == outcome
    assert [point["step"] for point in reporter.points] == [1, 2, 3, 4]
    assert [(step, final) for step, _, final in reporter.checkpoints] == [(3, False), (4, False)]


# It evaluates before the first step, after the second epoch and at the end.
EVALUATED = {"evaluate": {"clustering": {"restarts": 2}, "linear": {"epochs": 1}}}


@pytest.mark.slow
def test_interrupted_evaluation_is_left_to_the_resumed_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """At every point of every evaluation, in turn; no step is lost, and no evaluation."""
    spec = resolved(pictures, **EVALUATED, dar={"weight": 0.1, "labels": "cluster"})
    undisturbed = recorded(spec, pictures, cache, tmp_path / "undisturbed")
    stopped_after = set()
    for call in range(1, undisturbed.worked + 1, 11):
        stopped = Recorder(tmp_path / f"{call}", at_work=partial(_pause, at=call))
        outcome = run(spec, pictures, cache, stopped)
        last = stopped.last_checkpoint if stopped.checkpoints else None
        step = stopped.checkpoints[-1][0] if stopped.checkpoints else 0
        resumed = recorded(spec, pictures, cache, tmp_path / f"{call} resumed", last)
        if outcome == "succeeded":
            assert step == TOTAL, "only plots and saves were left"
            continue
        stopped_after.add(step)
        assert outcome == "paused"
        assert stopped.curve() + resumed.curve() == undisturbed.curve()
        if step:
            assert stopped.evaluations + resumed.evaluations == undisturbed.evaluations
        assert_same_state(undisturbed.last_checkpoint, resumed.last_checkpoint)
        if step == 2 * STEPS:
            assert resumed.checkpoints[0][0] == step, "saved again, with its evaluation"
    assert stopped_after == {0, 2 * STEPS, TOTAL}


def _pause(call: int, at: int) -> Desired:
    return "pause" if call >= at else "run"


def test_stop_after_checkpoint_saves_once(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    reporter = Recorder(tmp_path, stop_at(STEPS))
    assert run(resolved(pictures), pictures, cache, reporter) == "cancelled"
    assert [step for step, _, _ in reporter.checkpoints] == [STEPS]
