"""ONNX, torch.export and Hugging Face's layout: readable elsewhere, with the same results as torch."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from dasl_core.data.index import DatasetIndex
from dasl_core.data.views import central_view, render
from dasl_core.export import FORMATS, ExportError, export_backbone, export_checkpoint, onnx_file
from dasl_core.export.formats import _move_files
from dasl_core.export.network import largest_difference
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import ResolvedBackbone, ResolvedJobSpec
from dasl_core.spec.normalization import IMAGENET
from tests.support.exports import BACKBONE_KINDS, Reader, code_of, images_for, pickles_in, shake
from tests.support.training_world import resolved

MEASURED = {
    "step": 9,
    "epoch": 3.0,
    "evaluations": [
        {"step": 9, "epoch": 3.0, "subject": "backbone", "metrics": {"knn_top1": 0.75}}
    ],
}
# One group, whose worker alone makes the checkpoints and starts the reader.
pytestmark = pytest.mark.xdist_group("exports")
Exported = tuple[Path, ResolvedJobSpec, torch.nn.Module]
TINY = ResolvedBackbone(name="test_resnet", image_size=16, stem="standard", **dict(IMAGENET))


def checkpoint_of(
    pictures: DatasetIndex, kind: str, folder: Path, *, onnx: bool = False, crop_pct: float = 1.0
) -> tuple[ResolvedJobSpec, torch.nn.Module]:
    """Write a checkpoint of a network with perturbed weights."""
    spec = resolved(pictures, backbone=BACKBONE_KINDS[kind], evaluate={"crop_pct": crop_pct})
    torch.manual_seed(0)
    network = shake(build_backbone(spec.backbone))
    folder.mkdir()
    assert export_backbone(network, spec, MEASURED, folder, onnx=onnx) is None
    return spec, network


def features_of(network: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        features: np.ndarray = network(torch.from_numpy(images)).numpy()
    return features


def names_no_place_of_this_machine(data: bytes) -> bool:
    here = str(Path(__file__).resolve().parents[2]).encode()
    return here not in data and b"site-packages" not in data


@pytest.fixture(scope="module")
def onnx_checkpoints(
    pictures: DatasetIndex, tmp_path_factory: pytest.TempPathFactory
) -> list[Exported]:
    """Checkpoints with ONNX: a deep small stem, a ViT with its own patch size, gray images."""
    root = tmp_path_factory.mktemp("onnx")
    kinds = ("resnet-small-gray", "vit-small", "vit-large-image-gray")
    return [(root / k, *checkpoint_of(pictures, k, root / k, onnx=True)) for k in kinds]


@pytest.mark.slow
def test_onnxruntime_computes_same_features_without_torch(onnx_checkpoints: list[Exported]) -> None:
    folders = [folder for folder, _, _ in onnx_checkpoints]
    images = [images_for(spec, 5) for _, spec, _ in onnx_checkpoints]
    codes = [code_of(folder, block=1) for folder in folders]
    absent = "dasl_core,service,workers,torch,timm"
    with Reader(absent) as reader:
        features = reader.features(folders, codes, images)
    for (folder, _, network), given, theirs in zip(onnx_checkpoints, images, features, strict=True):
        expected = features_of(network, given)
        np.testing.assert_allclose(theirs, expected, rtol=1e-4, atol=1e-4, err_msg=folder.name)


@pytest.mark.slow
def test_checking_a_file_calls_nobody(onnx_checkpoints: list[Exported], tmp_path: Path) -> None:
    """The events that onnxruntime would send are first stored in the home folder, with the device's id."""
    file = str(onnx_checkpoints[0][0] / "backbone.onnx")
    code = f"from dasl_core.export.onnx_file import Path, _runtime; _runtime(Path({file!r}))"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.rglob("*")) == []


def test_onnx_file_contains_metadata(onnx_checkpoints: list[Exported]) -> None:
    import onnx

    for folder, spec, _ in onnx_checkpoints:
        file = folder / "backbone.onnx"
        model = onnx.load(file)
        onnx.checker.check_model(model)
        about = json.loads((folder / "model.json").read_text())
        assert [opset.version for opset in model.opset_import if opset.domain == ""] == [18]
        assert about["onnx"]["opset"] == 18
        assert about["onnx"]["largest_difference_from_torch"] <= 1e-4
        kept = {entry.key: entry.value for entry in model.metadata_props}
        assert json.loads(kept["preprocessing"]) == about["preprocessing"]
        (images,), size = model.graph.input, spec.backbone.image_size
        batch, *rest = images.type.tensor_type.shape.dim
        assert batch.dim_param
        assert [d.dim_value for d in rest] == [spec.backbone.in_channels, size, size]
        assert names_no_place_of_this_machine(file.read_bytes())


@pytest.mark.slow
def test_onnx_failure_keeps_checkpoint_and_is_reported(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_function(path: Path) -> object:
        return lambda images: torch.zeros(len(images), 96) + 1e-3

    monkeypatch.setattr("dasl_core.export.onnx_file._runtime", other_function)
    spec = resolved(pictures)
    network = build_backbone(spec.backbone)
    problem = export_backbone(network, spec, MEASURED, tmp_path, onnx=True)
    assert problem is not None
    assert "differs from torch" in problem
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"backbone.safetensors", "model.json", "metrics.json", "README.md"}
    assert json.loads((tmp_path / "model.json").read_text())["onnx"] == {"error": problem}
    assert problem in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_large_onnx_weights_are_stored_in_second_file(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasl_core.export.onnx_file.LARGEST_SINGLE_FILE", 1_000)
    checkpoint_of(pictures, "resnet-small-gray", tmp_path / "checkpoint", onnx=True)
    graph, weights = (tmp_path / "checkpoint" / f"backbone.onnx{end}" for end in ("", ".data"))
    assert graph.stat().st_size < weights.stat().st_size
    assert names_no_place_of_this_machine(graph.read_bytes())


@pytest.mark.slow
def test_export_does_not_change_network_or_random_state(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step draws the same random numbers with and without ONNX."""
    spec = resolved(pictures, backbone={"name": "test_vit", "image_size": 32})
    network = build_backbone(spec.backbone).train()
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    threads, before = torch.get_num_threads(), torch.get_rng_state()
    assert export_backbone(network, spec, MEASURED, tmp_path, onnx=True) is None
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, weights[name])


@pytest.mark.parametrize("onnx", [False, True])
def test_weights_that_timm_refuses_are_reported(
    onnx: bool, pictures: DatasetIndex, tmp_path: Path
) -> None:
    """Only the check detects this: without it, no network is built at a checkpoint."""
    spec = resolved(pictures, backbone={"name": "test_vit", "image_size": 32})
    other = torch.nn.Linear(2, 2)
    problem = export_backbone(other, spec, MEASURED, tmp_path, onnx=onnx)
    assert (problem is not None and "do not fit test_vit" in problem) == onnx


def test_onnx_check_is_relative_and_refuses_nan() -> None:
    def scaled(factor: float) -> torch.nn.Module:
        network = torch.nn.Flatten()
        network.register_forward_hook(lambda module, inputs, output: output * factor)
        return network

    def off_by(factor: float, difference: float) -> float:
        return largest_difference(
            scaled(factor), lambda images: images.flatten(1) * factor + difference, TINY
        )

    assert off_by(1e-3, 5e-5) == pytest.approx(5e-5, rel=1e-3)
    with pytest.raises(ExportError, match=r"differs from torch by 0\.0002 on 1 random images"):
        off_by(1e-3, 2e-4)
    assert off_by(1e3, 0.1) < 1e-4
    with pytest.raises(ExportError, match="nan"):
        off_by(1.0, float("nan"))


@pytest.mark.slow
def test_torch_program_needs_only_torch_and_contains_no_pickle(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    folders, images, expected = [], [], []
    for kind in ("vit-small", "resnet-small-gray"):
        folder = tmp_path / kind
        spec, network = checkpoint_of(pictures, kind, folder)
        file = export_checkpoint(folder, "torch-export")
        assert file == folder / "backbone.pt2"
        assert pickles_in(file.read_bytes(), "backbone.pt2") == []
        assert names_no_place_of_this_machine(file.read_bytes())
        with pytest.raises(ExportError, match=r"end in \.pt2"):
            export_checkpoint(folder, "torch-export", tmp_path / "program.pt")
        folders.append(folder)
        images.append(images_for(spec, 4))
        expected.append(features_of(network, images[-1]))
    code = "import torch\nmodel = torch.export.load('backbone.pt2').module()\n"
    absent = "dasl_core,service,workers,timm"
    with Reader(absent) as reader:
        features = reader.features(folders, [code, code], images)
    for folder, ours, theirs in zip(folders, expected, features, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5, err_msg=folder.name)


def test_non_finite_weights_are_refused_in_every_format(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint_of(pictures, "vit-small", folder)
    weights = load_file(folder / "backbone.safetensors")
    weights["norm.weight"][0] = torch.nan
    save_file(weights, folder / "backbone.safetensors")
    for format in FORMATS:
        with pytest.raises(ExportError, match=r"holds NaN or infinity in norm\.weight"):
            export_checkpoint(folder, format)


def test_timm_loads_hub_folder(pictures: DatasetIndex, reader: Reader, tmp_path: Path) -> None:
    folders, images, expected = [], [], []
    for kind in ("vit-small", "vit-large-image-gray", "resnet-standard"):
        spec, network = checkpoint_of(pictures, kind, tmp_path / kind)
        folder = export_checkpoint(tmp_path / kind, "hf", tmp_path / "hub" / kind)
        assert {file.name for file in folder.iterdir()} == {
            *("config.json", "model.safetensors", "README.md")
        }
        assert "| knn_top1 | 0.7500 |" in (folder / "README.md").read_text()
        folders.append(folder)
        images.append(images_for(spec))
        expected.append(features_of(network, images[-1]))

        tuned = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=10).eval()
        assert features_of(tuned, images[-1]).shape == (3, 10)
        own = tuned.state_dict()
        for name, tensor in network.state_dict().items():
            assert torch.equal(own[name], tensor), name
    features = reader.features(folders, [code_of(folder) for folder in folders], images)
    for folder, ours, theirs in zip(folders, expected, features, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6, err_msg=folder.name)


@pytest.mark.parametrize(("reduction", "crop_pct"), [(1, 1), (2, 1), (2, 0.8)])
def test_timm_transform_equals_evaluation_preprocessing(
    reduction: int, crop_pct: float, pictures: DatasetIndex, tmp_path: Path
) -> None:
    checkpoint_of(pictures, "vit-small", tmp_path / "checkpoint", crop_pct=crop_pct)
    folder = export_checkpoint(tmp_path / "checkpoint", "hf")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )
    height, width = (round(edge * reduction / crop_pct) for edge in (32, 48))
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    theirs = transform(Image.fromarray(pixels))
    canvas = torch.zeros(1, 3, width, width, dtype=torch.uint8)
    canvas[:, :, :height] = torch.from_numpy(pixels).permute(2, 0, 1)
    valid_hw = torch.tensor([[height, width]])
    ours = render(canvas, valid_hw, central_view(valid_hw, crop_pct), 32, torch.float32, IMAGENET)
    # Pillow rounds reduced rows and then columns to 8 bits; `theirs` are divided by some 0.226.
    atol = 1e-4 if reduction == 1 else 1 / 255 / 0.22
    torch.testing.assert_close(theirs, ours[0], rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["resnet18-small", "deep-stem-small"])
def test_hub_export_refuses_stem_without_timm_argument(
    kind: str, pictures: DatasetIndex, tmp_path: Path
) -> None:
    checkpoint_of(pictures, kind, tmp_path / kind)
    with pytest.raises(ExportError, match=r"no argument of timm's ResNet.*README\.md.*onnx"):
        export_checkpoint(tmp_path / kind, "hf", tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_damaged_descriptions_are_refused(pictures: DatasetIndex, tmp_path: Path) -> None:
    checkpoint_of(pictures, "resnet-standard", tmp_path / "checkpoint")
    whole = {name: (tmp_path / "checkpoint" / name) for name in ("metrics.json", "model.json")}
    about = json.loads(whole["model.json"].read_text())
    for name, content in (
        ("metrics.json", "[]"),
        ("metrics.json", "{}"),
        ("metrics.json", '{"step": 9, "epoch": null, "evaluations": []}'),
        ("metrics.json", '{"step": 9, "epoch": 3, "evaluations": [1]}'),
        ("metrics.json", "{"),
        ("model.json", "[]"),
        ("model.json", "null"),
        ("model.json", json.dumps(about | {"preprocessing": {}})),
    ):
        before = whole[name].read_text()
        whole[name].write_text(content)
        with pytest.raises(ExportError, match=r"not a readable checkpoint|damaged"):
            export_checkpoint(tmp_path / "checkpoint", "hf", tmp_path / "hub")
        assert not (tmp_path / "hub").exists()
        whole[name].write_text(before)


@pytest.mark.parametrize(
    "format_",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("onnx", "torch-export")), "hf"],
)
def test_previous_export_stays_until_new_one_is_complete(
    onnx_checkpoints: list[Exported], pictures: DatasetIndex, tmp_path: Path, format_: str
) -> None:
    if format_ == "onnx":
        shutil.copytree(onnx_checkpoints[0][0], tmp_path / "checkpoint")
        target = tmp_path / "checkpoint" / "backbone.onnx"
    else:
        checkpoint_of(pictures, "resnet-standard", tmp_path / "checkpoint")
        target = export_checkpoint(tmp_path / "checkpoint", format_)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))  # simulates a full disk
    try:
        with pytest.raises(ExportError, match=f"{target} cannot be written: .*too large"):
            export_checkpoint(tmp_path / "checkpoint", format_)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert files() == before


def test_half_replaced_files_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights beside a graph may have been replaced when the process is killed."""
    for folder in (tmp_path / "new", tmp_path / "old"):
        folder.mkdir()
        for name in ("backbone.onnx", "backbone.onnx.data"):
            (folder / name).write_text(folder.name)
    replace = Path.replace

    def killed(file: Path, target: Path) -> Path:
        if file.name == "backbone.onnx":
            raise KeyboardInterrupt
        return replace(file, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        _move_files(tmp_path / "new", tmp_path / "old", last="backbone.onnx", force=True)
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["backbone.onnx.data"]


def test_checkpoint_without_onnx_has_no_part_of_it(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(network: torch.nn.Module, spec: ResolvedJobSpec, path: Path) -> dict[str, Any]:
        path.with_name("backbone.onnx.data").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dasl_core.export.checkpoint.write_onnx", full)
    spec = resolved(pictures)
    network = build_backbone(spec.backbone)
    assert export_backbone(network, spec, MEASURED, tmp_path, onnx=True) is not None
    assert not list(tmp_path.glob("*onnx*"))


@pytest.mark.slow
def test_failed_onnx_check_keeps_previous_file(
    onnx_checkpoints: list[Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(onnx_checkpoints[0][0], tmp_path / "checkpoint")
    before = (tmp_path / "checkpoint" / "backbone.onnx").read_bytes()

    def broken(path: Path) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(onnx_file, "_runtime", broken)
    with pytest.raises(ExportError, match="the check with onnxruntime failed"):
        export_checkpoint(tmp_path / "checkpoint", "onnx")
    assert (tmp_path / "checkpoint" / "backbone.onnx").read_bytes() == before


def test_existing_output_of_another_kind_is_refused(pictures: DatasetIndex, tmp_path: Path) -> None:
    checkpoint_of(pictures, "resnet-standard", tmp_path / "checkpoint")
    file, folder = tmp_path / "file", tmp_path / "folder.pt2"
    file.write_text("mine")
    folder.mkdir()
    for format_, output, expected in (
        ("hf", file, "is a file; the format hf is written to a folder"),
        ("onnx", folder, "is a folder; the format onnx is written to a file"),
        ("torch-export", folder, "is a folder; the format torch-export is written to a file"),
        ("onnx", file / "below.onnx", "cannot be written"),
        ("hf", file / "below", "cannot be written"),
    ):
        with pytest.raises(ExportError, match=expected):
            export_checkpoint(tmp_path / "checkpoint", format_, output)
    assert file.read_text() == "mine"
