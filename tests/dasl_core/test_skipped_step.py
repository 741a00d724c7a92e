"""Skipped steps leave the state of every method unchanged, including its buffers."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import REGISTRY, Outputs, Step
from dasl_core.train.gradients import Terms
from dasl_core.train.trainer import Trainer
from tests.support.training_world import FAMILIES, assert_same, open_trainer, resolved, supported


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All state that the next step depends on, except the position and the loss scale."""
    state = trainer.checkpointer.state.state_dict([trainer.checkpointer.state.rank_state_dict()])
    kept = {part: state[part] for part in ("method", "criterion", "clusters", "ranks")}
    # Learning rate and weight decay of the groups are functions of the step.
    return copy.deepcopy(kept | {"optimizer": state["optimizer"]["state"]})


def changed(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    return {name for name, value in one.items() if not torch.equal(value, other[name])}


def spoil(trainer: Trainer, where: str, value: float) -> None:
    """Inject a non-finite value into the images, or into one gradient, of all following steps."""
    backward = trainer.gradients.backward

    def broken(
        views: Sequence[Tensor], step: Step, masks: Tensor | None = None, **options: Any
    ) -> tuple[Terms, Outputs]:
        if where == "images":
            return backward([view * value for view in views], step, masks, **options)
        result = backward(views, step, masks, **options)
        gradients = [w.grad for w in trainer.method.parameters() if w.grad is not None]
        spoilt = gradients[len(gradients) // 2]
        spoilt[(0,) * spoilt.ndim] = value
        return result

    trainer.gradients.backward = broken  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("method", "precision", "where", "value"),
    [
        pytest.param(method, *case, marks=[] if method in fast else pytest.mark.slow)
        for method in REGISTRY
        for fast, *case in (
            (FAMILIES, "fp32", "gradient", float("nan")),
            # As in the search for a loss scale. float16 takes a CPU long.
            (("simclr", "dino"), "fp16", "images", float("inf")),
        )
    ],
)
def test_skipped_step_leaves_state_unchanged(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    method: str,
    precision: str,
    where: str,
    value: float,
) -> None:
    spec = resolved(
        pictures,
        method={"name": method},
        backbone={"stem": "standard"},  # half the time
        **supported(
            method,
            dar={"share": 0.2, "labels": "cluster", "clusters": {"source": "kmeans", "k": 3}},
            sec={"weight": 0.5, "momentum": 0.4},
        ),
        train={
            "precision": precision,
            "epochs": 4,
            "optimizer": {"name": "sgd", "lr": 0.01},
            "checkpoint_every_epochs": 4,
        },
    )
    trainer = open_trainer(spec, pictures, cache, tmp_path)
    scaler = trainer.updater.scaler
    if precision == "fp16":  # so that the good steps do not overflow
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0})
    try:
        trainer.method.train()
        for batch in trainer.loader.epoch(0):
            trainer.step(batch)
        trainer.end_epoch()
        good, bad, _ = trainer.loader.epoch(1)
        earlier = state_of(trainer)
        trainer.step(good)
        before = state_of(trainer)
        scale = scaler.get_scale()
        spoil(trainer, where, value)
        trainer.step(bad)
        after = state_of(trainer)
    finally:
        trainer.close()

    # The good step before changed everything that the skipped step could have changed.
    matrices = {name for name, w in trainer.method.named_parameters() if w.ndim > 1}
    teachers = {name for name in matrices if name.startswith("teacher.")}
    moving = changed(earlier["method"], before["method"])
    assert moving >= matrices - teachers  # includes prototypes and proxies
    assert bool(moving & teachers) == (trainer.method.teachers() != [])
    assert moving >= {"center", "centers", "queue"} & before["method"].keys()
    means = {name for name in before["method"] if name.endswith("running_mean")}
    assert bool(moving & means) == bool(means)
    for name, state in before["criterion"].items():
        assert changed(earlier["criterion"][name], state) == (
            {"constraint.mean"} if name == "sec" else set()
        )
    assert before["ranks"][0]["bank"] is not None

    assert (trainer.run.progress.skipped, trainer.run.progress.overflowed) == (
        (1, 0) if precision == "fp32" else (0, 1)
    )
    assert_same(before, after, "state")
    assert scaler.get_scale() == (scale if precision == "fp32" else scale / 2)
