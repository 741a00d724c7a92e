"""Exports of networks for other bands and depths: what they say of how to feed them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.export import export_backbone, export_checkpoint
from dasl_core.export.transformers_folder import processor_config
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import ResolvedJobSpec, read_record, recorded_normalization
from tests.support.exports import code_of
from tests.support.training_world import band_images, ingest, resolved

NOTHING_MEASURED: dict[str, Any] = {"step": 1, "epoch": 1.0, "evaluations": []}
DEEP = {
    "name": "test_vit",
    "image_size": 32,
    "in_channels": 5,
    "window": [200, 3200],
    "mean": [0.1, 0.2, 0.3, 0.4, 0.5],
    "std": [0.5, 0.4, 0.3, 0.2, 0.1],
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResolvedJobSpec]:
    bands = ingest(band_images(tmp_path_factory.mktemp("bands")))
    folder = tmp_path_factory.mktemp("deep")
    spec = resolved(bands, backbone=DEEP, evaluate={"holdout": None})
    assert export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, folder) is None
    return folder, spec


def test_checkpoint_and_weights_record_window_and_bands(deep: tuple[Path, ResolvedJobSpec]) -> None:
    folder, spec = deep
    preprocessing = json.loads((folder / "model.json").read_text())["preprocessing"]
    assert (preprocessing["window"], preprocessing["channels"]) == ([200, 3200], 5)
    for recording in (folder, folder / "backbone.safetensors"):
        assert recorded_normalization(recording) == spec.backbone.normalization
    assert read_record(folder).in_channels == 5
    assert read_record(folder / "backbone.safetensors").in_channels is None  # files are adapted


def test_card_gives_the_formula_of_raw_values(deep: tuple[Path, ResolvedJobSpec]) -> None:
    folder, spec = deep
    card = " ".join((folder / "README.md").read_text().split())
    assert "its 5 bands in the order of the file, raw values x (of DICOM" in card
    (formula,) = re.findall(r"after slope and intercept\) as `(.+?)`", card)
    x = np.array([0.0, 200.0, 1700.0, 3200.0, 60_000.0])
    mean, std = np.array(spec.backbone.mean), np.array(spec.backbone.std)
    names = {"clip": np.clip, "x": x, "mean": mean, "std": std}
    fed = eval(formula, {"__builtins__": {}}, names)
    np.testing.assert_allclose(fed, (np.array([0, 0, 0.5, 1, 1]) - mean) / std)


def test_hub_folder_of_other_bands_loads_and_has_no_transform_for_8_bits(
    deep: tuple[Path, ResolvedJobSpec],
) -> None:
    folder, _ = deep
    hub = export_checkpoint(folder, "hf")
    code = code_of(hub)
    assert "create_transform" not in code
    model = timm.create_model(f"local-dir:{hub}", pretrained=True).eval()
    images = torch.zeros(1, 5, 32, 32)
    assert model(images).shape == (1, model.num_features)


def test_processor_of_transformers_computes_the_window(deep: tuple[Path, ResolvedJobSpec]) -> None:
    _, spec = deep
    config = processor_config(spec)
    x = np.linspace(200, 3200, 5)
    theirs = (x * config["rescale_factor"] - config["image_mean"]) / config["image_std"]
    low, high = spec.backbone.window
    ours = ((x - low) / (high - low) - spec.backbone.mean) / spec.backbone.std
    np.testing.assert_allclose(theirs, ours)
    assert not config["do_convert_rgb"]


def test_exports_of_8_bit_images_name_no_window(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec = resolved(pictures, backbone={"name": "test_vit", "image_size": 32})
    export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, tmp_path)
    assert "window" not in json.loads((tmp_path / "model.json").read_text())["preprocessing"]
    config = processor_config(spec)
    assert (config["rescale_factor"], config["image_mean"]) == (1 / 255, list(spec.backbone.mean))
    assert config["do_convert_rgb"]
