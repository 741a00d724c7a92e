"""Start weights: our checkpoints, and files of timm weights."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from dasl_core.data.index import DatasetIndex
from dasl_core.export import ExportError, export_checkpoint
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.normalization import IMAGENET
from tests.support.methods import backbone_of
from tests.support.training_world import Recorder, recorded, resolved, run

pytestmark = pytest.mark.usefixtures("without_plots")


def backbone(**changes: Any) -> ResolvedBackbone:
    usual: dict[str, Any] = {"name": "test_resnet", "image_size": 64}
    usual |= dict(IMAGENET.with_channels(changes.get("in_channels", 3)))
    return backbone_of(**usual | changes)


@pytest.fixture(scope="module")
def checkpoint(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    spec = resolved(
        pictures,
        backbone={"stem": "small"},
        train={"epochs": 1},
        evaluate={"knn": None, "retrieval": []},
    )
    reporter = recorded(spec, pictures, cache, tmp_path_factory.mktemp("trained"))
    return reporter.last_checkpoint


def test_job_starts_from_own_checkpoint(
    pictures: DatasetIndex, cache: Path, checkpoint: Path, tmp_path: Path
) -> None:
    for location in (str(checkpoint), checkpoint.as_uri()):
        model = build_backbone(backbone(image_size=16, stem="small", pretrained=location))
        for name, value in load_file(checkpoint / "backbone.safetensors").items():
            assert torch.equal(model.state_dict()[name], value), name
    spec = resolved(pictures, backbone={"stem": "small", "pretrained": str(checkpoint)})
    reporter = recorded(spec, pictures, cache, tmp_path)
    assert [subject for _, _, subject, _ in reporter.evaluations][:2] == ["raw", "start"]
    assert reporter.phases[1][1].startswith("Evaluating the weights to start from")
    card = " ".join((reporter.last_checkpoint / "README.md").read_text().split())
    assert f"3 of 3 epochs, from the weights of `{checkpoint}`." in card
    assert "| metric | raw pixels | start | epoch 3 |" in card


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_timm_weights_are_fitted(tmp_path: Path, name: str, ending: str) -> None:
    torch.manual_seed(1)
    published = timm.create_model(name, num_classes=7)  # with a classifier, as published
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
    # One channel: the sum over colors. A ViT of another size: interpolated position embeddings.
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


@pytest.mark.slow
def test_checkpoint_starts_a_network_with_another_pooling(checkpoint: Path) -> None:
    start = {"image_size": 16, "stem": "small", "pretrained": str(checkpoint)}
    plain = build_backbone(backbone(**start)).eval()
    pooled = build_backbone(backbone(**start, pooling="average_max")).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        features = plain.forward_features(images)  # type: ignore[operator]
        mean, largest = features.mean(dim=(2, 3)), features.amax(dim=(2, 3))
        torch.testing.assert_close(plain(images), mean)
        torch.testing.assert_close(pooled(images), (mean + largest) / 2)


def test_weights_of_other_shapes_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "is not a checkpoint" in refused(tmp_path)
    assert "has another network: its timm is" in refused(checkpoint, name="test_vit")
    assert "its stem is" in refused(checkpoint, image_size=16)
    (tmp_path / "a.txt").write_text("x")
    assert "must end in" in refused(tmp_path / "a.txt")
    (tmp_path / "b.safetensors").write_bytes(b"no weights")
    assert "b.safetensors cannot be read" in refused(tmp_path / "b.safetensors")
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "c.safetensors")
    assert "does not fit test_resnet" in refused(tmp_path / "c.safetensors")


def test_stem_that_discards_weights_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    published = timm.create_model("resnet18")
    torch.save(published.state_dict(), file)
    small = {"name": "resnet18", "image_size": 32, "stem": "small"}
    message = refused(file, **small)
    assert str(file) in message
    assert "holds weights for the standard stem" in message
    assert "set backbone.stem: standard" in message
    # A deep stem keeps its weights: only a stride changes.
    deep = timm.create_model("test_resnet").state_dict()
    save_file(deep, tmp_path / "deep.safetensors")
    fitted = build_backbone(
        backbone(image_size=32, stem="small", pretrained=str(tmp_path / "deep.safetensors"))
    )
    assert torch.equal(fitted.state_dict()["conv1.0.weight"], deep["conv1.0.weight"])


@pytest.mark.parametrize("channels", [1, 3])
def test_file_of_small_stem_loads_into_same_stem(tmp_path: Path, channels: int) -> None:
    changes = {"name": "resnet18", "image_size": 32, "stem": "small", "in_channels": channels}
    ours = build_backbone(backbone(**changes)).state_dict()
    file = tmp_path / "backbone.safetensors"
    save_file(ours, file)
    theirs = build_backbone(backbone(pretrained=str(file), **changes)).state_dict()
    assert ours["conv1.weight"].shape == (64, channels, 3, 3)
    assert all(torch.equal(theirs[name], value) for name, value in ours.items())
    message = refused(file, **(changes | {"stem": "standard"}))
    assert message.endswith("and backbone.stem is standard; set backbone.stem: small")


@pytest.mark.parametrize(
    ("larger", "smaller", "of_it"),
    [("resnet34", "resnet18", "layer1.2."), ("resnet18", "resnet34", "has no layer1.2.")],
)
def test_file_of_another_network_is_refused(
    tmp_path: Path, larger: str, smaller: str, of_it: str
) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model(larger).state_dict(), file)
    message = refused(file, name=smaller)
    assert f"{file} does not fit {smaller}: it" in message
    assert of_it in message


def test_file_with_a_batch_norm_of_its_classifier_loads(tmp_path: Path) -> None:
    published, file = timm.create_model("efficientvit_m0"), tmp_path / "weights.pth"
    torch.save(published.state_dict(), file)
    model = build_backbone(backbone(name="efficientvit_m0", image_size=224, pretrained=str(file)))
    assert torch.equal(*(next(each.parameters()) for each in (model, published)))


def test_weights_that_timm_does_not_resample_are_refused_with_their_size(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(timm.create_model("pit_ti_224").state_dict(), file)
    message = refused(file, name="pit_ti_224", image_size=64)
    assert "size mismatch for pos_embed" in message
    assert message.endswith("; weights that timm does not resample need backbone.image_size: 224")


def test_vit_with_jax_weights_loads_file(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    published = timm.create_model(name)
    assert published.pretrained_cfg["custom_load"]
    file = tmp_path / "weights.safetensors"
    save_file(published.state_dict(), file)
    model = build_backbone(backbone(name=name, image_size=64, pretrained=str(file)))
    assert torch.equal(model.state_dict()["cls_token"], published.state_dict()["cls_token"])


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        torch.ones(3),
        {1: torch.ones(3)},
        {"conv1.0.weight": "text"},
        {"state_dict": None},
        5,
    ],
)
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_pickle_without_weights_is_refused(tmp_path: Path, content: Any, name: str) -> None:
    file = tmp_path / "weights.pth"
    torch.save(content, file)
    size = {"test_resnet": 64, "test_vit": 160}[name]
    assert str(file) in refused(file, name=name, image_size=size)


@pytest.mark.parametrize("ending", [".bin", ".pt", ".pth", ".safetensors"])
def test_empty_or_unreadable_file_is_refused(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"weights{ending}"
    file.touch()
    assert f"{file} cannot be read" in refused(file)
    assert "cannot be read" in refused(Path("x" * 300 + ending))  # longer than any name

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    assert f"{file} cannot be read: Permission denied" in refused(file)


@pytest.mark.parametrize("content", ["[]", "null", "5", "{", "[" * 100_000])
def test_checkpoint_with_damaged_description_is_refused(
    checkpoint: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "backbone.safetensors").write_bytes(
        (checkpoint / "backbone.safetensors").read_bytes()
    )
    (tmp_path / "model.json").write_text(content)
    assert f"{tmp_path} cannot be read" in refused(tmp_path, image_size=16, stem="small")


@pytest.mark.parametrize("damage", ["missing", "misshapen", "nan"])
def test_checkpoint_with_damaged_weights_is_refused(
    checkpoint: Path, tmp_path: Path, damage: str
) -> None:
    weights = load_file(checkpoint / "backbone.safetensors")
    if damage == "missing":
        del weights["conv1.0.weight"]
    elif damage == "misshapen":
        weights["conv1.0.weight"] = torch.zeros(2, 3)
    else:
        weights["conv1.0.weight"][0, 0] = torch.nan
    save_file(weights, tmp_path / "backbone.safetensors")
    (tmp_path / "model.json").write_bytes((checkpoint / "model.json").read_bytes())
    message = refused(tmp_path, image_size=16, stem="small")
    assert str(tmp_path) in message
    assert "conv1.0.weight" in message


def test_checkpoint_with_changed_files_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    digests = {file.name: sha256(file.read_bytes()).hexdigest() for file in checkpoint.iterdir()}
    (checkpoint / "manifest.json").write_text(json.dumps({"sha256": digests}))
    network = {"image_size": 16, "stem": "small"}
    build_backbone(backbone(pretrained=str(checkpoint), **network))
    weights = checkpoint / "backbone.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert "backbone.safetensors is not as it was written" in refused(checkpoint, **network)
    with pytest.raises(ExportError, match=r"backbone\.safetensors is not as it was written"):
        export_checkpoint(checkpoint, "hf")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_non_finite_weights_are_refused(tmp_path: Path, bad: float) -> None:
    weights = timm.create_model("test_resnet").state_dict()
    weights["layer1.0.conv1.weight"][0, 0, 0, 0] = bad
    save_file(weights, tmp_path / "weights.safetensors")
    message = refused(tmp_path / "weights.safetensors")
    assert "holds NaN or infinity in layer1.0.conv1.weight" in message


class Evil:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("opened"),))


def test_code_in_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    message = refused(tmp_path / "evil.pth")
    assert message.endswith("which is not run; save a state_dict as .safetensors")
    assert not (tmp_path / "opened").exists()


@pytest.mark.slow
def test_start_checkpoint_can_be_deleted_afterwards(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), file)
    spec = resolved(pictures, backbone={"pretrained": str(file), "stem": "standard"})
    stopped = Recorder(tmp_path / "stopped", lambda started: "cancel" if started == 2 else "run")
    run(spec, pictures, cache, stopped)
    file.unlink()
    assert export_checkpoint(stopped.last_checkpoint, "torch-export").exists()
    recorded(spec, pictures, cache, tmp_path / "resumed", stopped.last_checkpoint)
