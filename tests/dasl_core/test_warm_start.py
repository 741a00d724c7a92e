"""Weights to start from: our checkpoints, and files of timm weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from training_world import Recorder, resolved, run

from dasl_core.data.index import DatasetIndex
from dasl_core.export import export_checkpoint
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import Backbone

pytestmark = pytest.mark.usefixtures("without_pictures")


def backbone(**changes: Any) -> Backbone:
    usual = {"name": "test_resnet", "image_size": 64, "stem": "standard"}
    return Backbone.model_validate(usual | changes)


@pytest.fixture(scope="module")
def checkpoint(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    reporter = Recorder(tmp_path_factory.mktemp("trained"))
    spec = resolved(pictures, train={"epochs": 1}, evaluate={"knn": None, "retrieval": []})
    run(spec, pictures, cache, reporter)
    return reporter.last_checkpoint


def test_a_job_starts_from_our_checkpoint(
    pictures: DatasetIndex, cache: Path, checkpoint: Path, tmp_path: Path
) -> None:
    for location in (str(checkpoint), checkpoint.as_uri()):
        model = build_backbone(backbone(image_size=16, stem="small", pretrained=location))
        for name, value in load_file(checkpoint / "backbone.safetensors").items():
            assert torch.equal(model.state_dict()[name], value), name
    reporter = Recorder(tmp_path)
    spec = resolved(pictures, backbone={"pretrained": str(checkpoint)})
    assert run(spec, pictures, cache, reporter) == "succeeded"
    card = " ".join((reporter.last_checkpoint / "README.md").read_text().split())
    assert f"3 of 3 epochs, from the weights of `{checkpoint}`." in card
    assert "| metric | raw pixels | at the start | epoch 3 |" in card


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_timm_weights_are_fitted(tmp_path: Path, name: str, ending: str) -> None:
    torch.manual_seed(1)
    published = timm.create_model(name, num_classes=7)  # with a classifier, as they come
    file = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"state_dict": published.state_dict()}, file)
    else:
        save_file(published.state_dict(), file)
    size = {"test_resnet": 64, "test_vit": 160}[name]
    model = build_backbone(backbone(name=name, image_size=size, pretrained=str(file)))
    ours, theirs = model.state_dict(), published.state_dict()
    for key in ours:
        assert torch.equal(ours[key], theirs[key]), key
    # One channel: the sum over the colours. A ViT of another size: its positions interpolated.
    gray = build_backbone(
        backbone(name=name, image_size=size, in_channels=1, pretrained=str(file))
    ).state_dict()
    first = "conv1.0.weight" if name == "test_resnet" else "patch_embed.proj.weight"
    torch.testing.assert_close(gray[first], theirs[first].sum(1, keepdim=True))
    if name == "test_vit":
        small = build_backbone(backbone(name=name, image_size=64, pretrained=str(file)))
        assert torch.equal(
            small.state_dict()["blocks.0.attn.qkv.weight"], theirs["blocks.0.attn.qkv.weight"]
        )
        assert small.state_dict()["pos_embed"].shape[1] == 1 + (64 // 16) ** 2


def refused(location: Path, **changes: Any) -> str:
    with pytest.raises(ValueError) as caught:
        build_backbone(backbone(pretrained=str(location), **changes))
    message = str(caught.value)
    assert message.startswith("backbone.pretrained: ")
    return message


def test_what_does_not_fit_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    assert "no file or folder" in refused(tmp_path / "nowhere")
    assert "is no checkpoint" in refused(tmp_path)
    assert "is of another network: its timm is" in refused(checkpoint, name="test_vit")
    assert "its stem is" in refused(checkpoint, image_size=16)
    (tmp_path / "a.txt").write_text("x")
    assert "must end in" in refused(tmp_path / "a.txt")
    (tmp_path / "b.safetensors").write_bytes(b"no weights")
    assert "does not fit test_resnet" in refused(tmp_path / "b.safetensors")
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "c.safetensors")
    assert "does not fit test_resnet" in refused(tmp_path / "c.safetensors")


class Evil:
    """What a pickle can do when it is loaded."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("opened"),))


def test_a_pickle_with_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    assert "does not fit" in refused(tmp_path / "evil.pth")
    assert not (tmp_path / "opened").exists()


def test_what_was_started_from_may_go_afterwards(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), file)
    spec = resolved(pictures, backbone={"pretrained": str(file), "stem": "standard"})
    stopped = Recorder(tmp_path / "stopped", lambda asked: "cancel" if asked == 2 else "run")
    run(spec, pictures, cache, stopped)
    file.unlink()
    assert export_checkpoint(stopped.last_checkpoint, "onnx").exists()
    resumed = Recorder(tmp_path / "resumed")
    assert run(spec, pictures, cache, resumed, stopped.last_checkpoint) == "succeeded"
