"""`dasl export` on a downloaded checkpoint, without a server."""

import json
from pathlib import Path
from typing import get_args

import pytest
import timm
import torch
from typer.testing import CliRunner, Result

from dasl_core.export import FORMATS, export_backbone
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from dasl_core.vocabulary import ExportFormat
from service.cli.app import app


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Checkpoint of an untrained ViT."""
    return write_checkpoint(tmp_path / "checkpoint", "test_vit")


def write_checkpoint(folder: Path, backbone: str) -> Path:
    settings = {"dataset": "birds", "backbone": {"name": backbone, "image_size": 32}}
    facts = DatasetFacts(num_images=100, num_classes=None, median_size=32)
    spec = resolve(JobSpec.model_validate(settings), facts)
    folder.mkdir()
    metrics = {"step": 1, "epoch": 1.0, "evaluations": []}
    export_backbone(build_backbone(spec.backbone), spec, metrics, folder)
    return folder


def test_command_offers_every_format() -> None:
    assert get_args(ExportFormat) == tuple(FORMATS)


def test_hf_export_writes_a_folder_that_timm_loads(checkpoint: Path) -> None:
    done = export(checkpoint, "--format", "hf")
    assert done.exit_code == 0, done.output
    folder = checkpoint / "huggingface"
    assert done.output == f"Wrote {folder}.\n"
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 64)


def test_json_output_has_the_path(checkpoint: Path, tmp_path: Path) -> None:
    done = export(checkpoint, "-f", "hf", "-o", tmp_path / "hub", "--json")
    assert json.loads(done.output) == {"format": "hf", "path": str(tmp_path / "hub")}
    assert (tmp_path / "hub" / "config.json").is_file()


def test_failed_export_reports_one_message(checkpoint: Path, tmp_path: Path) -> None:
    resnet = write_checkpoint(tmp_path / "resnet", "test_resnet")
    done = export(resnet, "--format", "hf")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: test_resnet has the stem for small images")
    (checkpoint / "model.json").unlink()
    done = export(checkpoint, "--format", "onnx")
    assert done.exit_code == 1
    assert "is not the folder of a checkpoint: model.json is missing" in done.stderr
    assert export(checkpoint, "--format", "tensorrt").exit_code == 2
    assert export(tmp_path / "nothing", "--format", "onnx").exit_code == 2
