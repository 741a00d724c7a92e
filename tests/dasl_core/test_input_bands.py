"""Weights for RGB that are adapted to images with other bands."""

import math
from pathlib import Path
from typing import Any, Literal

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import adapt_input_conv
from torch import Tensor

from dasl_core.models.backbone import build_backbone
from dasl_core.models.input_bands import adapt
from dasl_core.spec import ResolvedBackbone

FIRST = {"test_resnet": "conv1.0.weight", "test_vit": "patch_embed.proj.weight"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(1)
    found = {}
    for name in FIRST:
        found[name] = folder / f"{name}.safetensors"
        save_file(timm.create_model(name, num_classes=7).state_dict(), found[name])
    return found


def first_of(name: str, file: Path, channels: int, **settings: Any) -> Tensor:
    size = {"test_resnet": 64, "test_vit": 160}[name]
    values = {"mean": [0.5] * channels, "std": [0.5] * channels, "stem": "standard"}
    backbone = ResolvedBackbone.model_validate(
        {"name": name, "image_size": size, "pretrained": str(file), "in_channels": channels}
        | values
        | settings
    )
    torch.manual_seed(2)
    model = build_backbone(backbone)
    assert model(torch.zeros(1, channels, size, size)).shape == (1, model.num_features)
    first: Tensor = model.state_dict()[FIRST[name]]
    return first


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("channels", [2, 5])
def test_published_weights_are_adapted(files: dict[str, Path], name: str, channels: int) -> None:
    rgb = first_of(name, files[name], 3)
    repeated = first_of(name, files[name], channels)
    torch.testing.assert_close(repeated, adapt_input_conv(channels, rgb))
    mean = first_of(name, files[name], channels, extra_bands="mean")
    expected = (rgb.mean(1, keepdim=True) * 3 / channels).expand(-1, channels, -1, -1)
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(mean.sum(1), rgb.sum(1))
    if channels == 5:
        fresh = first_of(name, files[name], channels, extra_bands="random")
        torch.testing.assert_close(fresh[:, :3], rgb * math.sqrt(3 / 5))
        assert not torch.allclose(fresh[:, 3], fresh[:, 4])
        torch.testing.assert_close(fresh[:, 3:].square().mean(), rgb.square().mean() * 3 / 5)


@pytest.mark.parametrize("how", ["mean", "random"])
def test_outputs_keep_their_scale(how: Literal["mean", "random"]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 3, 3, 3, generator=generator)
    fresh = 7 * torch.randn(64, 6, 3, 3, generator=generator)
    adapted = adapt(weight, fresh, how)
    if how == "mean":  # bands alike: exactly
        images = torch.randn(4, 1, 8, 8, generator=generator)
        outputs = [
            torch.nn.functional.conv2d(images.expand(-1, each.shape[1], -1, -1), each)
            for each in (weight, adapted)
        ]
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    else:  # independent bands: in variance
        totals = [each.square().sum() for each in (weight, adapted)]
        torch.testing.assert_close(totals[1], totals[0])


def test_weights_with_the_bands_of_the_job_are_loaded_as_they_are(tmp_path: Path) -> None:
    published = timm.create_model("test_resnet", num_classes=7, in_chans=5).state_dict()
    save_file(published, tmp_path / "five.safetensors")
    for how in ("repeat", "mean", "random"):
        first = first_of("test_resnet", tmp_path / "five.safetensors", 5, extra_bands=how)
        assert torch.equal(first, published[FIRST["test_resnet"]])


@pytest.mark.parametrize("how", ["repeat", "mean"])
def test_weights_with_other_bands_than_rgb_are_refused(tmp_path: Path, how: str) -> None:
    published = timm.create_model("test_resnet", num_classes=7, in_chans=5).state_dict()
    save_file(published, tmp_path / "five.safetensors")
    with pytest.raises(ValueError, match=r"backbone\.pretrained: .* does not fit test_resnet"):
        first_of("test_resnet", tmp_path / "five.safetensors", 4, extra_bands=how)
