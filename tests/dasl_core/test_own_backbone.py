"""`pretrain` on a backbone of the user."""

import copy
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import rank
from dasl_core.export import FORMATS, ExportError, export_checkpoint
from dasl_core.methods import build_method
from dasl_core.spec import JobSpec, ResolvedJobSpec, SpecError, resolve
from dasl_core.spec.resolve import estimate
from dasl_core.train.optim import learning_rate_factors
from dasl_core.train.serialization import load_state
from dasl_core.train.validation import Validator
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import Recorder, assert_same, recorded, resolved, run, tiny_spec

WIDTH = 6
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"name": "simclr"},
    "dino": {"name": "dino", "local_crops": 1, "local_size": 8, "out_dim": 8, "hidden_dim": 8}
    | {"bottleneck_dim": 4},
}


def network(width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, width),
    )


class Stateful(nn.Identity):
    """A layer with state that is no tensor."""

    def get_extra_state(self) -> str:
        return "text"


class Tied(nn.Module):
    """A network two of whose layers share their weight, and that uses a third one twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(3, WIDTH, 3, stride=2)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.norm = self.norm_again = nn.BatchNorm1d(WIDTH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(self.stem(images).mean(dim=(2, 3)))))
        features: torch.Tensor = self.norm_again(self.second(x))
        return features


def own_spec(index: DatasetIndex, **changes: Any) -> ResolvedJobSpec:
    settings = tiny_spec(backbone={"name": "own"}, **changes)
    return resolve(JobSpec.model_validate(settings), index.facts(), own_features=WIDTH)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("method", METHODS)
def test_own_backbone_trains_resumes_exactly_and_is_saved(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str
) -> None:
    spec = own_spec(pictures, method=METHODS[method], train={"epochs": 2})
    trained = network()
    whole = recorded(spec, pictures, cache, tmp_path / "whole", backbone=trained)
    before = network().state_dict()
    assert not torch.equal(trained.state_dict()["0.weight"], before["0.weight"])
    again = recorded(
        spec, pictures, cache, tmp_path / "again", whole.checkpoints[0][1], backbone=network()
    )
    last = whole.last_checkpoint
    assert_same(load_state(last), load_state(again.last_checkpoint), "state")
    assert {subject for _, _, subject, _ in whole.evaluations} == {"raw", "start", "backbone"}

    about = json.loads((last / "model.json").read_text())
    assert (about["timm"], about["num_features"]) == (None, WIDTH)
    network().load_state_dict(load_file(last / "backbone.safetensors"))
    card = (last / "README.md").read_text()
    assert "this folder has only its weights" in card
    assert "timm.create_model" not in card


@pytest.mark.usefixtures("without_plots")
def test_checkpoint_of_another_own_network_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec, reporter = own_spec(pictures, evaluate={"holdout": None}), Recorder(tmp_path)
    run(spec, pictures, cache, reporter, backbone=network())
    with pytest.raises(ValueError, match=r"does not fit .*: backbone\.5\.bias differs"):
        run(spec, pictures, cache, None, reporter.last_checkpoint, backbone=network(WIDTH + 1))
    for format in FORMATS:
        with pytest.raises(ExportError, match="the architecture is not in the checkpoint"):
            export_checkpoint(reporter.last_checkpoint, format)


def test_own_backbone_must_return_features(pictures: DatasetIndex) -> None:
    spec = own_spec(pictures)
    with pytest.raises(ValueError, match=r"pass the network, such as pretrain\(\.\.\., backbone"):
        build_method(spec)
    with pytest.raises(ValueError, match=r"must be 'own' for a network that is passed"):
        build_method(resolved(pictures), backbone=network())
    with pytest.raises(ValueError, match=r"to features \(B, F\); .* gave \(2, 4, 1, 1\)"):
        build_method(spec, backbone=network()[:4])
    with pytest.raises(ValueError, match=r"6\._extra_state of its state is no tensor"):
        build_method(spec, backbone=nn.Sequential(*network(), Stateful()))
    wrong = copy.deepcopy(network())
    wrong.num_features = 5  # type: ignore[assignment]
    with pytest.raises(ValueError, match="must be the width of the features, 6; given 5"):
        build_method(spec, backbone=wrong)


def test_weights_that_features_do_not_need_are_refused_on_several_ranks(
    pictures: DatasetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, backbone = own_spec(pictures), Tied()
    backbone.classifier = nn.Linear(WIDTH, 3)
    build_method(spec, backbone=backbone)
    monkeypatch.setattr("dasl_core.models.own.world_size", lambda: 2)
    with pytest.raises(ValueError, match=r"do not depend on classifier\.weight, classifier\.bias;"):
        build_method(spec, backbone=backbone)
    backbone.classifier.requires_grad_(False)
    build_method(spec, backbone=backbone)


@pytest.mark.usefixtures("without_plots")
def test_own_backbone_of_a_run_that_ends_in_frozen_epochs_learns_after_resume(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    train = {"epochs": 2, "head_only_epochs": 1, "optimizer": {"name": "sgd", "lr": 0.05}}
    spec = own_spec(pictures, train=train, evaluate={"holdout": None})
    stopped = Recorder(tmp_path, lambda started: "cancel" if started == 2 else "run")
    backbone = network()
    start = copy.deepcopy(backbone)
    run(spec, pictures, cache, stopped, backbone=backbone)
    assert all(weight.requires_grad for weight in backbone.parameters())
    run(spec, pictures, cache, None, stopped.last_checkpoint, backbone=backbone)
    assert not torch.equal(next(backbone.parameters()), next(start.parameters()))


def test_jobs_cannot_name_an_own_backbone(pictures: DatasetIndex) -> None:
    spec = JobSpec.model_validate(tiny_spec(backbone={"name": "own"}))
    with pytest.raises(SpecError, match="jobs and commands cannot train it"):
        resolve(spec, pictures.facts())
    with pytest.raises(SpecError, match="a model of timm, whose width is known"):
        resolve(JobSpec.model_validate(tiny_spec()), pictures.facts(), own_features=WIDTH)
    with pytest.raises(ValueError, match="load the weights before passing it"):
        JobSpec.model_validate(tiny_spec(backbone={"name": "own", "pretrained": "weights.pt"}))
    with pytest.raises(ValueError, match="the size of a network of one's own is not known"):
        estimate(own_spec(pictures), pictures.facts())


def test_own_backbone_continues_from_its_weights_without_layer_decay(
    pictures: DatasetIndex,
) -> None:
    for layer_decay, error in (("auto", "layer_decay: must be 1 for this backbone"), (1, None)):
        optimizer = {"name": "auto", "layer_decay": layer_decay}
        spec = own_spec(pictures, recipe="continue", train={"optimizer": optimizer})
        method = build_method(spec, backbone=network())
        if error:
            with pytest.raises(ValueError, match=error):
                learning_rate_factors(spec.train.optimizer, method)
        else:
            rates = learning_rate_factors(spec.train.optimizer, method)
            assert set(rates.values()) == {10.0}  # the heads only
            assert all(name.startswith("projector") for name in rates)


def run_of_tied_network(
    spec: dict[str, Any], index: DatasetIndex, cache: Path, kept: Path
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses and final weights, on rank 0."""
    reporter = Recorder(kept) if rank() == 0 else None
    with patch.object(Validator, "publish_plots", lambda *_: None):
        run(ResolvedJobSpec.model_validate(spec), index, cache, reporter, backbone=Tied())
    if reporter is None:
        return [], {}
    weights = load_state(reporter.last_checkpoint)["method"]
    return reporter.curve(), {name: weight.numpy() for name, weight in weights.items()}


def test_own_backbone_with_tied_weights_on_two_ranks_equals_one(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    losses, weights = [], []
    for workers in (1, 2):
        spec = own_spec(
            pictures,
            method={"name": "byol"},
            train={"precision": "fp64", "optimizer": {"name": "sgd", "lr": 0.05}, "epochs": 1},
            evaluate={"holdout": None},
            resources={"workers": workers},
        ).model_dump(mode="json")
        folder = tmp_path / str(workers)
        (curve, state), *_ = pool.call(workers, run_of_tied_network, spec, pictures, cache, folder)
        losses.append(curve)
        weights.append(state)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-10)
    for name, weight in weights[0].items():
        np.testing.assert_allclose(weights[1][name], weight, rtol=0, atol=1e-10, err_msg=name)
        if ".second.weight" in name:  # also the EMA teacher's
            np.testing.assert_array_equal(weight, weights[0][name.replace("second", "first")])
    assert not np.array_equal(
        weights[0]["backbone.first.weight"], Tied().first.weight.detach().numpy()
    )
    exported = load_file(tmp_path / "2" / "step-3" / "backbone.safetensors")
    Tied().load_state_dict(exported)
    torch.testing.assert_close(exported["second.weight"], exported["first.weight"])
