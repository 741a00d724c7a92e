"""Normalization of images: chosen by what weights were trained with, and the same everywhere."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from dasl_core.data.index import DatasetIndex
from dasl_core.data.views import central_view, render
from dasl_core.export import export_checkpoint
from dasl_core.export.network import save_weights
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import (
    BACKBONES,
    DatasetFacts,
    FieldProblem,
    JobSpec,
    Normalization,
    SpecError,
    WeightsRecord,
    field_problems,
    recorded_normalization,
    resolve,
)
from dasl_core.spec.normalization import IMAGENET
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.reporter import NullReporter
from tests.support.methods import backbone_of
from tests.support.training_world import assert_same, recorded, resolved

pytestmark = pytest.mark.usefixtures("without_plots")

HALF = Normalization(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
OTHER = Normalization(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
FACTS = DatasetFacts(num_images=1000, num_classes=10, median_size=72)


def spec_of(**backbone: Any) -> JobSpec:
    return JobSpec.model_validate({"dataset": "pictures", "backbone": backbone})


def chosen(recorded: Normalization | None = None, **backbone: Any) -> Normalization:
    return resolve(spec_of(**backbone), FACTS, WeightsRecord(recorded)).backbone.normalization


def refused(recorded: Normalization | None = None, **backbone: Any) -> FieldProblem:
    with pytest.raises(SpecError) as raised:
        chosen(recorded, **backbone)
    (problem,) = raised.value.problems
    return problem


# --- the choice


def test_random_weights_get_imagenet() -> None:
    assert chosen() == Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    assert chosen(in_channels=1) == Normalization(mean=(0.449,), std=(0.226,))
    assert chosen(name="vit_tiny_patch16_224") == IMAGENET


def test_file_gets_what_all_published_weights_expect() -> None:
    vit: dict[str, Any] = {"name": "vit_tiny_patch16_224", "pretrained": "/w/tiny.pth"}
    assert chosen(**vit) == HALF
    assert chosen(in_channels=1, **vit) == Normalization(mean=(0.5,), std=(0.5,))
    clip = chosen(name="vit_base_patch16_clip_384", pretrained="file:///w/clip.safetensors")
    assert clip.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert chosen(name="resnet18", pretrained="/w/resnet18.pth") == IMAGENET


def test_file_of_model_with_several_normalizations_needs_a_setting() -> None:
    vit: dict[str, Any] = {"name": "vit_small_patch16_224", "pretrained": "/w/vit.pth"}
    problem = refused(**vit)
    assert problem.field == "backbone.mean"
    assert problem.message.endswith("set backbone.mean and backbone.std to those of their training")
    assert problem.expected == (
        "mean [0.5, 0.5, 0.5] and std [0.5, 0.5, 0.5] for augreg_in21k_ft_in1k, augreg_in1k, "
        "augreg_in21k; or mean [0.485, 0.456, 0.406] and std [0.229, 0.224, 0.225] for dino"
    )
    assert refused(mean=HALF.mean, **vit).field == "backbone.std"
    assert chosen(mean=IMAGENET.mean, std=IMAGENET.std, **vit) == IMAGENET
    assert chosen(HALF, **vit) == HALF


def test_file_of_model_without_published_weights_needs_a_setting() -> None:
    problem = refused(name="vit_large_patch14_224", pretrained="/w/vit.pth")
    assert problem.field == "backbone.mean"
    assert "timm publishes no weights of vit_large_patch14_224" in problem.message
    assert problem.expected.startswith("such as mean [0.485, 0.456, 0.406] and std")


def test_recorded_normalization_is_chosen_and_must_agree() -> None:
    start: dict[str, Any] = {"name": "resnet18", "pretrained": "/w/checkpoint"}
    assert chosen(**start) == IMAGENET
    assert chosen(OTHER, **start) == OTHER
    assert chosen(OTHER, in_channels=1, **start) == Normalization(mean=(0.2,), std=(0.5,))
    assert chosen(OTHER, mean=OTHER.mean, **start) == OTHER
    problem = refused(OTHER, std=HALF.std, **start)
    assert problem.field == "backbone.std"
    assert problem.expected == (
        "backbone.mean: [0.1, 0.2, 0.3] and backbone.std: [0.4, 0.5, 0.6], or auto for both; if the record is "
        "wrong, correct it in the files"
    )
    assert refused(OTHER, mean=HALF.mean, **start).field == "backbone.mean"


@pytest.mark.parametrize(
    ("backbone", "field"),
    [
        ({"mean": [0.5], "in_channels": 3}, "backbone.mean"),
        ({"std": [0.5, 0.5, 0.5], "in_channels": 1}, "backbone.std"),
        ({"mean": []}, "backbone.mean"),
        ({"mean": 0.5}, "backbone.mean"),
        ({"mean": [123.675, 116.28, 103.53]}, "backbone.mean.0"),
        ({"std": [0.5, 0.0, 0.5]}, "backbone.std.1"),
        ({"std": [0.5, -1.0, 0.5]}, "backbone.std.1"),
        ({"std": [math.nan, 0.5, 0.5]}, "backbone.std.0"),
        ({"mean": [math.inf, 0.5, 0.5]}, "backbone.mean.0"),
        ({"mean": [True, 0.5, 0.5]}, "backbone.mean.0"),
        ({"mean": "imagenet"}, "backbone.mean"),
    ],
)
def test_invalid_normalization_is_refused(backbone: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        spec_of(**backbone)
    (problem,) = field_problems(raised.value, JobSpec)
    assert problem.field == field
    assert problem.expected


def test_number_of_values_must_be_that_of_channels() -> None:
    with pytest.raises(ValidationError) as raised:
        spec_of(mean=[0.5], in_channels=3)
    (problem,) = field_problems(raised.value, JobSpec)
    assert problem == refused(None, mean=[0.5])  # the data set decides on "auto" channels
    assert problem.message == "has 1 values for 3 channels"
    assert problem.expected == "'auto', or 3 numbers: one for each of backbone.in_channels"


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.001, 1), min_size=3, max_size=3),
)
def test_gray_gets_the_averages(mean: list[float], std: list[float]) -> None:
    rgb = Normalization(mean=tuple(mean), std=tuple(std))
    gray = rgb.with_channels(1)
    assert gray.mean[0] == pytest.approx(sum(mean) / 3, abs=1e-6)
    assert gray.std[0] == pytest.approx(sum(std) / 3, abs=1e-6)
    assert rgb.with_channels(3) is rgb
    assert rgb.is_close(rgb)


def test_catalog_has_the_normalization_of_default_weights() -> None:
    published = 0
    for name, info in BACKBONES.items():
        config = timm.get_pretrained_cfg(name)
        if config is None or not config.has_weights:
            assert all(config is None or config.tag not in n.weights for n in info.normalizations)
            continue
        published += 1
        default = info.normalizations[0]
        assert (default.mean, default.std) == (tuple(config.mean), tuple(config.std)), name
        assert default.weights[0] == config.tag
    assert published > 200


# --- what files record


def description(normalization: Normalization) -> dict[str, Any]:
    return normalization.model_dump(mode="json")


def test_preprocessing_of_transformers_is_read(tmp_path: Path) -> None:
    """Its `config.json` describes the network alone."""
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dinov3_vit"}))
    images = {"image_mean": [0.43, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    recorded = recorded_normalization(tmp_path / "model.safetensors")
    assert recorded == Normalization(mean=(0.43, 0.411, 0.296), std=(0.213, 0.156, 0.143))


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("section", [True, False], ids=["pretrained_cfg", "early timm"])
def test_timm_config_beside_hub_weights_is_read(
    tmp_path: Path, weights: str, section: bool
) -> None:
    file = tmp_path / weights
    save_file({"a": torch.zeros(1)}, file)
    assert recorded_normalization(file) is None
    content = {"pretrained_cfg": description(OTHER)} if section else description(OTHER)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit"} | content))
    assert recorded_normalization(file) == OTHER
    # The file beside other names may be another network's.
    assert recorded_normalization(tmp_path / "other.bin") is None


def test_config_of_another_library_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "dinov2", "hidden_size": 384}')
    assert recorded_normalization(tmp_path / "pytorch_model.bin") is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        "[]",
        "null",
        "5",
        '{"pretrained_cfg": []}',
        '{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0, 0.5]}',
        '{"mean": [123.675, 116.28, 103.53], "std": [58.4, 57.1, 57.4]}',
        '{"mean": "x", "std": "y"}',
        " " * (2**24 + 1),
    ],
    ids=range(10),
)
def test_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(content)
    with pytest.raises(
        ValueError, match=rf"backbone\.pretrained: {config} cannot be read: "
    ) as raised:
        recorded_normalization(tmp_path / "pytorch_model.bin")
    assert not any(
        name in str(raised.value) for name in ("TypeError", "AttributeError", "KeyError")
    )


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 9, (2).to_bytes(8, "little") + b"[]"])
def test_damaged_safetensors_header_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"backbone\.pretrained: {file} cannot be read: "):
        recorded_normalization(file)


def test_folder_must_be_a_checkpoint(tmp_path: Path) -> None:
    no_checkpoint = "is not a checkpoint of DASL: it has no backbone.safetensors and no model.json"
    with pytest.raises(ValueError, match=f"{no_checkpoint}$"):
        recorded_normalization(tmp_path)
    (tmp_path / "model.safetensors.index.json").touch()
    with pytest.raises(ValueError, match=f"{no_checkpoint}; weights in several files are not read"):
        recorded_normalization(tmp_path)
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match=f"{no_checkpoint}; .* name their file, {file}$"):
        recorded_normalization(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match=r"backbone\.pretrained: .*has no preprocessing"):
        recorded_normalization(tmp_path)


# --- a run from weights that expect 0.5 / 0.5


@pytest.fixture(scope="module")
def vit_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as timm publishes it: a ViT with a classifier, whose weights expect 0.5 and 0.5."""
    file = tmp_path_factory.mktemp("timm") / "vit.safetensors"
    torch.manual_seed(4)
    save_file(timm.create_model("test_vit").state_dict(), file)
    return file


def vit_job(index: DatasetIndex, file: Path, **backbone: Any) -> Any:
    settings = {"name": "test_vit", "image_size": 32, "stem": "standard", "pretrained": str(file)}
    return resolved(
        index,
        backbone=settings | backbone,
        augment={"crop_scale": (1, 1), "flip": 0, "jitter": 0, "grayscale": 0, "blur": 0},
        train={"epochs": 1},
        evaluate={"knn": None, "retrieval": []},
    )


def test_views_and_evaluation_feed_weights_as_they_were_trained(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, vit_file: Path
) -> None:
    """The same pixels under ImageNet's constants are the reference."""
    images = []
    for normalization in (Normalization(**dict(IMAGENET)), None):
        start = {} if normalization is None else {"pretrained": None, **dict(normalization)}
        spec = vit_job(pictures, vit_file, **start)
        trainer = build_trainer(
            open_run(spec, pictures, NullReporter(), RunFiles(cache=cache, scratch=tmp_path))
        )
        try:
            evaluator = trainer.validator.evaluator
            assert evaluator is not None
            held_out = evaluator.encoder.features(
                lambda pixels: pixels.flatten(1), evaluator.held_out
            )
            views = trainer.prefetcher.maker.make(next(trainer.loader.epoch(0)), 0)
        finally:
            trainer.close()
        mean, std = (
            torch.tensor(each).view(3, 1, 1) for each in (spec.backbone.mean, spec.backbone.std)
        )
        images.append([part * std + mean for part in (*views, held_out.view(-1, 3, 32, 32))])
        assert spec.backbone.normalization == (normalization or HALF)
    for usual, fed in zip(*images, strict=True):
        torch.testing.assert_close(fed, usual, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def checkpoint(
    pictures: DatasetIndex, cache: Path, vit_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The final checkpoint of a run that started from `vit_file`."""
    spec = vit_job(pictures, vit_file)
    reporter = recorded(spec, pictures, cache, tmp_path_factory.mktemp("trained"))
    return reporter.last_checkpoint


@pytest.mark.slow
def test_checkpoint_and_exports_record_normalization_of_weights(
    checkpoint: Path, tmp_path: Path
) -> None:
    preprocessing = json.loads((checkpoint / "model.json").read_text())["preprocessing"]
    assert (preprocessing["mean"], preprocessing["std"]) == ([0.5] * 3, [0.5] * 3)
    card = " ".join((checkpoint / "README.md").read_text().split())
    assert "minus mean [0.5, 0.5, 0.5], divided by [0.5, 0.5, 0.5]" in card


def test_evaluation_agrees_with_timm_transform_of_weights(checkpoint: Path, tmp_path: Path) -> None:
    folder = export_checkpoint(checkpoint, "hf", tmp_path / "hub")
    exported = timm.create_model(f"local-dir:{folder}", pretrained=True)
    expected = timm.data.resolve_data_config(model=timm.create_model("test_vit"))
    config = timm.data.resolve_model_data_config(exported)
    assert all(tuple(config[name]) == expected[name] for name in ("mean", "std"))
    transform = timm.data.create_transform(**config, is_training=False)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    canvas, valid_hw = torch.from_numpy(pixels).permute(2, 0, 1)[None], torch.tensor([[32, 32]])
    ours = render(canvas, valid_hw, central_view(valid_hw), 32, torch.float32, HALF)
    torch.testing.assert_close(transform(Image.fromarray(pixels)), ours[0], rtol=0, atol=1e-5)


def test_exports_record_normalization_wherever_they_are_moved(
    checkpoint: Path, tmp_path: Path
) -> None:
    hub = export_checkpoint(checkpoint, "hf", tmp_path / "hub")
    moved = Path(shutil.copy(checkpoint / "backbone.safetensors", tmp_path / "moved.safetensors"))
    for start in (
        checkpoint,
        checkpoint / "backbone.safetensors",
        moved,
        hub / "model.safetensors",
    ):
        assert recorded_normalization(start) == HALF, start
    # A checkpoint of 0.1 records it in model.json alone.
    older = Path(shutil.copytree(checkpoint, tmp_path / "older")) / "backbone.safetensors"
    save_file(load_file(older), older, metadata={"format": "pt"})
    assert recorded_normalization(older) == recorded_normalization(older.parent) == HALF


def test_equal_weights_give_equal_files(pictures: DatasetIndex, tmp_path: Path) -> None:
    spec, weights = resolved(pictures), {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    for number in range(9):
        save_weights(weights, spec, tmp_path / f"{number}.safetensors")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert_same(load_file(tmp_path / "0.safetensors"), weights, "weights")


def test_start_with_another_normalization_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    hub = export_checkpoint(checkpoint, "hf", tmp_path / "hub")
    for start in (checkpoint, checkpoint / "backbone.safetensors", hub / "model.safetensors"):
        wrong = backbone_of("test_vit", 32, pretrained=str(start))
        with pytest.raises(ValueError) as raised:
            build_backbone(wrong)
        message = str(raised.value)
        assert message.startswith("backbone.mean: is not what the weights of backbone.pretrained")
        assert "backbone.mean: [0.5, 0.5, 0.5] and backbone.std: [0.5, 0.5, 0.5]" in message
        assert message.endswith(
            "a new job takes what they record (dasl clone JOB --checkpoint none)"
        )
        build_backbone(wrong.model_copy(update=dict(HALF)))
