"""What the files of weights to start from record, and what "auto" makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from dasl_core.models.backbone import build_backbone, fit_stem
from dasl_core.spec import (
    Backbone,
    DatasetFacts,
    JobSpec,
    ResolvedBackbone,
    SpecError,
    WeightsRecord,
    read_record,
    resolve,
)
from dasl_core.spec.normalization import IMAGENET
from dasl_core.spec.weights import weights_problem

FACTS = DatasetFacts(num_images=1000, num_classes=10, median_size=40)
VIT = "vit_tiny_patch16_224"
SMALL_STEM = ["model.conv1 = ...", "model.maxpool = ..."]


def record_of(folder: Path, *, stem: Any = (), **arguments: Any) -> WeightsRecord:
    """What a checkpoint records, whose network timm builds with these arguments."""
    content = {"preprocessing": IMAGENET.model_dump(), "timm": arguments, "stem": stem}
    (folder / "model.json").write_text(json.dumps(content))
    return read_record(folder)


def chosen(record: WeightsRecord, pretrained: str | None, **backbone: Any) -> ResolvedBackbone:
    settings = {"dataset": "pictures", "backbone": {"pretrained": pretrained, **backbone}}
    return resolve(JobSpec.model_validate(settings), FACTS, record).backbone


def test_published_weights_load_at_small_images(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(timm.create_model("resnet18").state_dict(), file)
    backbone = chosen(read_record(file), str(file))
    assert (backbone.image_size, backbone.stem) == (96, "standard")
    weight = build_backbone(backbone).get_parameter("conv1.weight")
    assert torch.equal(weight, timm.models.load_state_dict(str(file))["conv1.weight"])


def test_auto_stem_is_that_of_the_weights(tmp_path: Path) -> None:
    folder, file = str(tmp_path), str(tmp_path / "backbone.safetensors")
    standard = record_of(tmp_path, model_name="resnet18")
    small = record_of(tmp_path, model_name="resnet18", stem=SMALL_STEM)
    assert chosen(standard, folder).stem == "standard"
    assert chosen(small, folder, image_size=224).stem == "small"
    assert chosen(read_record(Path(file)), file, image_size=224).stem == "small"
    # Without a record: random weights and a checkpoint by the size, files are published ones.
    for pretrained, stem in ((None, "small"), (folder, "small"), (file, "standard")):
        assert chosen(WeightsRecord(), pretrained, image_size=32).stem == stem, pretrained
    with pytest.raises(SpecError, match=r"backbone\.stem: must be small, that of the checkpoint"):
        chosen(small, folder, stem="standard")


def test_checkpoint_of_vit_fixes_image_size(tmp_path: Path) -> None:
    folder, file = str(tmp_path), str(tmp_path / "backbone.safetensors")
    small = record_of(tmp_path, model_name=VIT, img_size=48, patch_size=6)
    backbone = chosen(small, folder, name=VIT)
    assert (backbone.image_size, backbone.stem) == (48, "small")
    with pytest.raises(SpecError, match=r"backbone\.image_size: must be 48, that of the check"):
        chosen(small, folder, name=VIT, image_size=64)
    # The positions of a file are resampled.
    assert chosen(read_record(Path(file)), file, name=VIT).image_size == 40
    standard = record_of(tmp_path, model_name=VIT, img_size=48)
    assert (standard.stem, standard.image_size) == ("standard", 48)
    assert chosen(standard, folder, name=VIT).stem == "standard"


def test_hub_folder_of_small_stem_is_recognized(tmp_path: Path) -> None:
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    save_file({"x": torch.ones(1)}, file)
    for size, stem in (
        ({"img_size": 32, "patch_size": 4}, "small"),
        ({"img_size": 32}, "standard"),
    ):
        config.write_text(json.dumps({"model_args": size}))
        record = read_record(file)
        assert (record.stem, record.image_size) == (stem, None)


@pytest.mark.parametrize("channels", [1, 3])
def test_classifier_with_small_stem_loads(tmp_path: Path, channels: int) -> None:
    file = tmp_path / "model.safetensors"
    network = timm.create_model("resnet18", num_classes=10)
    fit_stem(network, "small")
    save_file(network.state_dict(), file)
    # timm's, if the network was built with arguments; they do not tell what was changed afterwards.
    content = {"model_args": {"num_classes": 10}, **IMAGENET.model_dump()}
    (tmp_path / "config.json").write_text(json.dumps(content))
    backbone = chosen(read_record(file), str(file), image_size=96, in_channels=channels)
    assert backbone.stem == "small"
    weight = build_backbone(backbone).get_parameter("conv1.weight")
    expected = network.get_parameter("conv1.weight")
    torch.testing.assert_close(weight, expected if channels == 3 else expected.sum(1, keepdim=True))


def test_stem_of_a_file_without_record_is_that_of_its_first_convolution(tmp_path: Path) -> None:
    file = tmp_path / "moved.safetensors"
    for kernel, stem, other in ((3, "small", "standard"), (7, "standard", "small")):
        save_file({"conv1.weight": torch.ones(64, 3, kernel, kernel)}, file)
        assert read_record(file).stem == stem
        backbone = Backbone.model_validate({"name": "resnet18", "stem": other})
        problem = weights_problem(file, backbone)
        assert problem is not None
        assert problem.endswith(f"and backbone.stem is {other}; set backbone.stem: {stem}")


@pytest.mark.parametrize("size", [0, -8, 4, 2**40, True, "48", [48], 1e9, None])
def test_impossible_image_size_is_not_taken(tmp_path: Path, size: Any) -> None:
    assert record_of(tmp_path, img_size=size, patch_size=0).image_size is None
