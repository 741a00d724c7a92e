"""Exported backbones: loaded with the code of their model card, in a process without this package."""

import contextlib
import copy
import io
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import ExifTags, Image
from safetensors.numpy import load_file
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.embedding import ImagesWithFeatures, load_backbone
from dasl_core.export import FORMATS, ExportError, export_backbone, export_checkpoint
from dasl_core.export.checkpoint import constructor, read_checkpoint
from dasl_core.methods import build_method
from dasl_core.models.backbone import build_backbone
from dasl_core.models.batchnorm import synchronize_batchnorm
from dasl_core.spec import BACKBONES, ResolvedBackbone
from dasl_core.spec.normalization import IMAGENET
from dasl_core.train.serialization import load_state
from tests.support.exports import BACKBONE_KINDS, Reader, code_of, images_for, pickles_in, shake
from tests.support.training_world import ingest, recorded, resolved

# With test_export_formats.py, for the same reader.
pytestmark = pytest.mark.xdist_group("exports")
REPOSITORY = Path(__file__).parents[2]
NOTHING_MEASURED = {"step": 1, "epoch": 1.0, "evaluations": []}


@pytest.mark.slow
def test_card_code_loads_backbones_without_this_project(
    pictures: DatasetIndex, reader: Reader, tmp_path: Path
) -> None:
    folders, images, expected, kinds = [], [], [], []
    for kind, backbone in BACKBONE_KINDS.items():
        spec = resolved(pictures, backbone=backbone)
        network = shake(build_backbone(spec.backbone))
        kinds.append(kind)
        folders.append(tmp_path / kind)
        folders[-1].mkdir()
        assert export_backbone(network, spec, NOTHING_MEASURED, folders[-1]) is None
        images.append(images_for(spec))
        with torch.no_grad():
            expected.append(network(torch.from_numpy(images[-1])).numpy())
        assert expected[-1].shape == (3, BACKBONES[spec.backbone.name].features)
    features = reader.features(folders, [code_of(folder) for folder in folders], images)
    for kind, ours, theirs in zip(kinds, expected, features, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6, err_msg=kind)


PRINTED = ["card", "README.md", "docs/first-job.md", "docs/checkpoints.md", "page"]


def printed_code(source: str, folder: Path) -> str:
    """Return the Python code that loads the backbone of a folder and feeds an image."""
    if source == "card":
        return code_of(folder) + code_of(folder, 1)
    if source == "page":
        text = (REPOSITORY / "service/web/js/job/checkpoints-view.js").read_text()
        return text.split("SNIPPET = `")[1].split("`;")[0].replace("\\\\", "\\")
    first = re.search(r"```python\n(.*?)```", (REPOSITORY / source).read_text(), re.DOTALL)
    assert first is not None
    return first[1]


@pytest.mark.parametrize(
    ("source", "kind"),
    [*((source, "resnet-standard") for source in PRINTED if source != "page"), ("card", "gray")],
)
def test_printed_code_feeds_a_photo_as_the_evaluation_does(
    pictures: DatasetIndex, reader: Reader, tmp_path: Path, source: str, kind: str
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    rows, columns = np.mgrid[:300, :420] / 60
    waves = np.stack([np.sin(rows + shift) * np.cos(columns * shift) for shift in (1, 2, 3)], 2)
    image = Image.fromarray((127 + 100 * waves).astype(np.uint8))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image.save(photos / "photo.jpg", quality=95, exif=exif)
    backbone = BACKBONE_KINDS["vit-large-image-gray" if kind == "gray" else kind]
    spec = resolved(pictures, backbone=backbone, evaluate={"crop_pct": 0.875})
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    export_backbone(shake(build_backbone(spec.backbone)), spec, NOTHING_MEASURED, folder)
    shutil.copy(photos / "photo.jpg", folder)
    evaluated = ImagesWithFeatures(
        load_backbone(folder, torch.device("cpu")), ingest(photos), cache=tmp_path, threads=1
    )
    [batch] = evaluated.batches()
    evaluated.close()
    [features] = reader.features([folder], [printed_code(source, folder)], [images_for(spec)])
    difference = np.linalg.norm(features - batch.features) / np.linalg.norm(batch.features)
    assert difference < 0.01


def test_printed_code_loads_no_other_network(pictures: DatasetIndex, tmp_path: Path) -> None:
    """A deep stem's weights fit timm's own stem, too, which has other strides."""
    folders = [tmp_path / stem for stem in ("standard", "small")]
    for folder in folders:
        folder.mkdir()
        spec = resolved(
            pictures, backbone={"name": "resnet10t", "image_size": 32, "stem": folder.name}
        )
        export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, folder)
    for source in PRINTED:
        code = printed_code(source, folders[0])
        with contextlib.chdir(folders[1]), pytest.raises(AssertionError, match=r"model\.maxpool"):
            exec(code, {})


def test_exported_backbone_is_the_trained_one(
    pictures: DatasetIndex, cache: Path, reader: Reader, tmp_path: Path, without_plots: None
) -> None:
    spec = resolved(
        pictures,
        backbone={"stem": "small"},
        train={"precision": "fp64"},
        dar={"weight": 0.1},
        sec={},
    )
    reporter = recorded(spec, pictures, cache, tmp_path)
    folder = reporter.last_checkpoint
    network = build_backbone(spec.backbone).double()
    state = load_state(folder)["method"]
    own = {name.removeprefix("backbone."): value for name, value in state.items()}
    network.load_state_dict({name: own[name] for name in network.state_dict()})
    images = images_for(spec)
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(images).double()).numpy()
    (features,) = reader.features([folder], [code_of(folder)], [images])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)
    weights = load_file(folder / "backbone.safetensors")
    assert {value.dtype.name for value in weights.values()} == {"float32", "int64"}

    model = json.loads((folder / "model.json").read_text())
    assert model["timm"]["model_name"] == "test_resnet"
    assert len(model["stem"]) == 2
    assert model["preprocessing"]["image_size"] == 16
    assert model["preprocessing"]["mean"] == list(IMAGENET.mean)
    assert model["spec"] == spec.model_dump(mode="json")
    card = (folder / "README.md").read_text()
    assert "\n# tiny\n" in card
    assert "simclr with DAR and SEC on `pictures`" in card
    assert "3 of 3 epochs, from random weights" in card
    last = {
        e["subject"]: e for e in json.loads((folder / "metrics.json").read_text())["evaluations"]
    }
    assert last.keys() == {"raw", "untrained", "backbone"}
    assert "| metric | raw pixels | untrained | epoch 3 |" in card
    for name in last["backbone"]["metrics"]:
        values = [evaluation["metrics"].get(name) for evaluation in last.values()]
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        assert f"| {name} | {' | '.join(cells)} |" in card


def test_card_code_computes_the_embedding_of_a_supervised_method(
    pictures: DatasetIndex, cache: Path, reader: Reader, tmp_path: Path, without_plots: None
) -> None:
    train = {"epochs": 1, "batch_size": 8, "precision": "fp64"}
    method_settings = {"name": "proxy_anchor", "embedding_norm": True}
    spec = resolved(pictures, method=method_settings, train=train)
    reporter = recorded(spec, pictures, cache, tmp_path)
    folder = reporter.last_checkpoint
    method = build_method(spec, num_classes=3).double()
    method.load_state_dict(load_state(folder)["method"])
    images = images_for(spec)
    with torch.no_grad():
        embeddings = method.eval().embed(torch.from_numpy(images).double())
    expected = F.normalize(embeddings, dim=1).numpy()
    embed = "\nwith torch.no_grad():\n    features = embed(torch.from_numpy(images)).numpy()\n"
    code = code_of(folder, 0) + code_of(folder, 1) + embed
    (embedding,) = reader.features([folder], [code], [images])
    np.testing.assert_allclose(embedding, expected, rtol=1e-4, atol=1e-5)
    assert load_file(folder / "head.safetensors").keys() >= {"0.running_mean", "1.weight", "1.bias"}
    head = json.loads((folder / "model.json").read_text())["head"]
    assert (head["file"], head["normalized"]) == ("head.safetensors", True)


def test_constructor_builds_the_layers_of_a_head() -> None:
    head = nn.Sequential(
        nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Sequential(nn.Linear(3, 2))
    )
    synchronized = synchronize_batchnorm(copy.deepcopy(head), torch.device("cpu"))
    for network in (head, synchronized):
        built = eval(constructor(network), {"torch": torch})
        built.load_state_dict(head.state_dict())
        x = torch.randn(5, 4)
        torch.testing.assert_close(built(x), head(x))


def test_checkpoint_contains_and_loads_no_pickle(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    without_plots: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = {"name": "test_vit", "image_size": 16}
    spec = resolved(pictures, backbone=backbone, train={"epochs": 1}, dar={}, sec={})
    reporter = recorded(spec, pictures, cache, tmp_path, onnx=True)
    assert reporter.events == []
    folder = reporter.last_checkpoint
    for format in FORMATS:
        # The last checkpoint already contains ONNX, `test_export_formats` looks for pickles in a program of
        # torch.export, which takes longer, and transformers' layout is for other networks.
        if format not in ("onnx", "torch-export", "transformers"):
            export_checkpoint(folder, format)
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    assert files.keys() >= {
        *("README.md", "backbone.onnx", "backbone.safetensors", "metrics.json"),
        *("huggingface/README.md", "huggingface/config.json", "huggingface/model.safetensors"),
        *("model.json", "training_state.json", "training_state.safetensors"),
    }
    for name, file in files.items():
        assert pickles_in(file.read_bytes(), name) == []

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert load_state(folder)["progress"]["step"] == reporter.checkpoints[-1][0]
    assert read_checkpoint(folder)[0] == spec


def test_pickle_detection_finds_nested_pickles() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickles_in(pickle.dumps({"weights": [1.0]}, protocol), "a") == ["a"]
    saved = io.BytesIO()
    torch.save({"weights": torch.zeros(3)}, saved)
    assert pickles_in(saved.getvalue(), "a") == ["a/archive/data.pkl"]
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    as_torch_does = io.BytesIO()
    torch.export.save(program, as_torch_does)
    (found,) = pickles_in(as_torch_does.getvalue(), "a")
    assert found.endswith("data.pkl")


def test_card_omits_regularizers_of_weight_zero(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec = resolved(pictures, dar={"weight": 0}, sec={"weight": 0})
    export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, tmp_path)
    header = (tmp_path / "README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(header)["tags"] == ["image-feature-extraction", "timm", "simclr"]


def test_card_describes_data_and_training(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec = resolved(
        pictures,
        dar={"weight": 0.25, "norm": "l2"},
        sec={"weight": 0.75},
        evaluate={"holdout": {"by": "class", "fraction": 0.5}},
        train={"seed": 41},
    )
    network = build_backbone(spec.backbone)
    data = {"images": 12345, "classes": 7, "train_images": 10000, "held_out_images": 2345}
    export_backbone(network, spec, NOTHING_MEASURED | {"data": data}, tmp_path)
    card = (tmp_path / "README.md").read_text()
    _, header, rest = card.split("---\n", 2)
    about = yaml.safe_load(header)
    assert about["library_name"] == "timm"
    assert about["pipeline_tag"] == "image-feature-extraction"
    assert about["tags"] == ["image-feature-extraction", "timm", "simclr", "dar", "sec"]
    assert "license" not in about
    for row in (
        "| images | 12,345 |",
        "| classes | 7 |",
        "| trained on | 10,000 images |",
        "| evaluated on | 2,345 images |",
        "| held out, never trained on | 0.5 of the classes, chosen by a hash of their names |",
        "| seed | 41 |",
    ):
        assert row in rest
    (dar,) = [line for line in rest.splitlines() if line.startswith("| DAR |")]
    assert "weight 0.25" in dar
    assert "norm l2" in dar
    (sec,) = [line for line in rest.splitlines() if line.startswith("| SEC |")]
    assert "weight 0.75" in sec
    assert f"torch {torch.__version__}" in rest
    assert "No evaluation was recorded." in rest
    assert "dasl export FOLDER --format onnx" in rest
    (settings,) = rest.split("```json\n")[1:]
    assert json.loads(settings.split("```")[0]) == spec.model_dump(mode="json")

    export_backbone(network, resolved(pictures), NOTHING_MEASURED, tmp_path)
    plain = (tmp_path / "README.md").read_text()
    assert "with simclr on `pictures`" in plain
    assert "| DAR | none |" in plain
    assert "| held out, never trained on | 0.1 of the images" in plain


def test_incomplete_checkpoint_is_refused_with_missing_file(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"not the folder of a checkpoint.*backbone\.safetensors"):
        read_checkpoint(tmp_path)
    spec = resolved(pictures)
    export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, tmp_path)
    assert read_checkpoint(tmp_path)[0] == spec
    file = tmp_path / "model.json"
    model = json.loads(file.read_text())
    model["spec"]["backbone"]["invented"] = 1
    file.write_text(json.dumps(model))
    with pytest.raises(ExportError, match=r"another version.*spec\.backbone\.invented"):
        read_checkpoint(tmp_path)
    file.write_text("{")
    with pytest.raises(ExportError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"onnx, torch-export, hf, transformers; given 'tensorrt'"):
        export_checkpoint(tmp_path, "tensorrt")


@pytest.mark.parametrize(
    ("name", "size", "stride"),
    [("resnet18", 32, 8), ("resnet10t", 32, 8), ("resnet50d", 16, 8), ("resnet18", 96, 32)],
)
def test_small_stem_keeps_resolution(name: str, size: int, stride: int) -> None:
    stem = "small" if size <= 64 else "standard"
    network = build_backbone(
        ResolvedBackbone(name=name, image_size=size, stem=stem, **dict(IMAGENET))
    )
    with torch.no_grad():
        # An attribute of timm's models that `nn.Module` does not declare.
        last = cast(Any, network.eval()).forward_features(torch.rand(1, 3, size, size))
    assert last.shape[-2:] == (size // stride, size // stride)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_small_vit_has_eight_by_eight_patches(size: int) -> None:
    network = build_backbone(
        ResolvedBackbone(name="test_vit", image_size=size, stem="small", **dict(IMAGENET))
    )
    assert network.get_submodule("patch_embed").num_patches == 64
    assert network(torch.rand(2, 3, size, size)).shape == (2, network.num_features)
