"""Training options that must not change the results."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.train.serialization import load_state
from dasl_core.train.validation import Validator
from tests.support.training_world import (
    Recorder,
    assert_same,
    open_trainer,
    recorded,
    resolved,
    run,
    run_and_resume,
)

pytestmark = pytest.mark.usefixtures("without_plots")
TRAIN = {"precision": "fp64", "epochs": 2, "optimizer": {"name": "sgd", "lr": 0.05}}


@pytest.fixture(scope="module")
def plain(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    spec = resolved(pictures, train=TRAIN, dar={"weight": 0.1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validator, "publish_plots", lambda *_: None)
        return recorded(spec, pictures, cache, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "option",
    [
        {"channels_last": False},
        {"checkpoint_activations": True},
        {"deterministic": True},
        # Inductor's C++ compiler may be missing; tracing is the part that can break.
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
    ids=lambda option: next(iter(option)),
)
def test_option_does_not_change_results(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    plain: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    option: dict[str, bool],
) -> None:
    if "compile" in option:
        compiled = torch.nn.Module.compile
        monkeypatch.setattr(
            torch.nn.Module, "compile", lambda module: compiled(module, backend="aot_eager")
        )
    spec = resolved(pictures, train=TRAIN | option, dar={"weight": 0.1})
    reporter = recorded(spec, pictures, cache, tmp_path)
    assert reporter.curve() == pytest.approx(plain.curve(), abs=1e-10)
    ours, theirs = (load_state(each.last_checkpoint)["method"] for each in (reporter, plain))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, msg=name)


def test_deterministic_mode_is_reset(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    run(resolved(pictures, train={"deterministic": True}), pictures, cache, None)
    assert torch.are_deterministic_algorithms_enabled()
    run(resolved(pictures), pictures, cache, None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_micro_batches_resume_bit_exactly(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, train={"micro_batches": 2, "epochs": 2}, dar={"weight": 0.1})
    recorders = run_and_resume(spec, pictures, cache, tmp_path, 4)
    states = [load_state(each.last_checkpoint) for each in recorders]
    assert_same(states[0]["method"], states[1]["method"], "method")


def test_options_reach_network(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    """Guards the tests above, which could not fail if an option had no effect."""
    spec = resolved(pictures, train={"channels_last": True, "checkpoint_activations": True})
    with closing(open_trainer(spec, pictures, cache, tmp_path)) as this:
        weight = this.method.backbone.get_parameter("layer1.0.conv2.weight")
        assert weight.is_contiguous(memory_format=torch.channels_last)
        views = this.prefetcher.maker.make(next(this.loader.epoch(0)), 0)
        assert views[0].is_contiguous(memory_format=torch.channels_last)
        assert "forward" in vars(this.method.backbone.get_submodule("layer1.0"))
