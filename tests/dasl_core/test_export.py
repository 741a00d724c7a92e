"""A downloaded backbone is timm's: loaded as its card says, in a process that knows nothing of us."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from training_world import Recorder, resolved, run

from dasl_core.data.augment import statistics
from dasl_core.data.index import DatasetIndex
from dasl_core.export import export_backbone
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import BACKBONES, Backbone, JobSpec
from dasl_core.train.checkpoint import load_state

# Run with `-I`: neither this folder nor PYTHONPATH is searched; and as if we were not installed.
READER = """
import os
import sys

OURS = ("dasl_core", "service", "workers")
for name in OURS:
    sys.modules[name] = None  # importing it raises ImportError
for folder in sys.argv[1:]:
    os.chdir(folder)
    names = {}
    exec(open("code.py").read(), names)
    import numpy, torch

    torch.set_num_threads(1)
    with torch.no_grad():
        features = names["model"](torch.from_numpy(numpy.load("images.npy")))
    numpy.save("features.npy", features.numpy())
loaded = [n for n, module in sys.modules.items() if module and n.split(".")[0] in OURS]
assert not loaded, loaded
"""

BACKBONE_KINDS: dict[str, dict[str, Any]] = {
    "resnet18-small": {"name": "resnet18", "image_size": 32},
    "deep-stem-small": {"name": "resnet10t", "image_size": 32},
    "vit-small": {"name": "test_vit", "image_size": 32},
    "vit-large-image-gray": {
        "name": "test_vit",
        "image_size": 96,
        "stem": "standard",
        "in_channels": 1,
    },
    "resnet-standard": {"name": "test_resnet", "image_size": 96, "stem": "standard"},
    "resnet-small-gray": {"name": "resnet10t", "image_size": 16, "in_channels": 1},
}


def images_for(spec: JobSpec) -> np.ndarray:
    size, channels = spec.backbone.image_size, spec.backbone.in_channels
    assert isinstance(size, int)
    images: np.ndarray = np.random.default_rng(0).normal(size=(3, channels, size, size))
    return images.astype(np.float32)


def features_as_the_cards_say(folders: list[Path], images: list[np.ndarray]) -> list[np.ndarray]:
    """Follow the code block of each card in a fresh process; features of the folder's images."""
    for folder, its_images in zip(folders, images, strict=True):
        card = (folder / "README.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        (folder / "code.py").write_text(code)
        np.save(folder / "images.npy", its_images)
    done = subprocess.run(
        [sys.executable, "-I", "-c", READER, *map(str, folders)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / "features.npy") for folder in folders]


def shake(network: torch.nn.Module) -> torch.nn.Module:
    """Weights and running statistics as training would leave them: none at its initial value."""
    generator = torch.Generator().manual_seed(0)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.rand(tensor.shape, generator=generator)
    return network.eval()


def test_the_cards_load_the_backbones_where_we_are_not_installed(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    folders, images, expected = [], [], []
    for kind, backbone in BACKBONE_KINDS.items():
        spec = resolved(pictures, backbone=backbone)
        network = shake(build_backbone(spec.backbone))
        folders.append(tmp_path / kind)
        folders[-1].mkdir()
        measured = {"step": 1, "epoch": 1.0, "evaluations": []}
        export_backbone(network, spec, measured, folders[-1])
        images.append(images_for(spec))
        with torch.no_grad():
            expected.append(network(torch.from_numpy(images[-1])).numpy())
        assert expected[-1].shape == (3, BACKBONES[spec.backbone.name].features)
    features = features_as_the_cards_say(folders, images)
    for kind, ours, theirs in zip(BACKBONE_KINDS, expected, features, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6, err_msg=kind)


def test_what_a_run_hands_over_is_the_backbone_it_trained(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, without_pictures: None
) -> None:
    spec = resolved(pictures, train={"precision": "fp64"}, dar={"weight": 0.1}, sec={})
    reporter = Recorder(tmp_path)
    run(spec, pictures, cache, reporter)
    folder = reporter.last_checkpoint
    network = build_backbone(spec.backbone).double()
    state = load_state(folder)["method"]
    own = {name.removeprefix("backbone."): value for name, value in state.items()}
    network.load_state_dict({name: own[name] for name in network.state_dict()})
    images = images_for(spec)
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(images).double()).numpy()
    (features,) = features_as_the_cards_say([folder], [images])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)
    weights = load_file(folder / "backbone.safetensors")
    assert {value.dtype.name for value in weights.values()} == {"float32", "int64"}

    model = json.loads((folder / "model.json").read_text())
    assert model["timm"]["model_name"] == "test_resnet"
    assert len(model["stem"]) == 2
    assert model["preprocessing"]["image_size"] == 16
    assert model["preprocessing"]["mean"] == list(statistics(3)[0])
    card = (folder / "README.md").read_text()
    assert card.startswith("# tiny\n")
    assert "simclr with DAR and SEC on `pictures`" in card
    assert "3 of 3 epochs" in card
    for evaluation in json.loads((folder / "metrics.json").read_text())["evaluations"]:
        if evaluation["subject"] != "backbone" or evaluation["epoch"] == 3:
            for name, value in evaluation["metrics"].items():
                assert f"| {name} | {value:.4f} |" in card


@pytest.mark.parametrize(
    ("name", "size", "stride"),
    [("resnet18", 32, 8), ("resnet10t", 32, 8), ("resnet50d", 16, 8), ("resnet18", 96, 32)],
)
def test_a_small_stem_keeps_the_resolution(name: str, size: int, stride: int) -> None:
    stem = "small" if size <= 64 else "standard"
    network = build_backbone(Backbone(name=name, image_size=size, stem=stem))
    with torch.no_grad():
        last = network.eval().forward_features(torch.rand(1, 3, size, size))
    assert last.shape[-2:] == (size // stride, size // stride)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_a_small_vit_sees_eight_by_eight_patches(size: int) -> None:
    network = build_backbone(Backbone(name="test_vit", image_size=size, stem="small"))
    assert network.patch_embed.num_patches == 64
    assert network(torch.rand(2, 3, size, size)).shape == (2, network.num_features)
