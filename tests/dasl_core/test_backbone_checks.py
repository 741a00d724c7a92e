"""What a network cannot do is refused at validation, by facts of the catalog."""

from typing import Any

import pytest
import timm
import torch

from dasl_core.models.freeze import freeze_first_blocks
from dasl_core.models.frequent_shapes import frequent_shapes
from dasl_core.spec import BACKBONES, BackboneInfo, DatasetFacts, JobSpec, SpecError, resolve

FACTS = DatasetFacts(num_images=300, num_classes=3, median_size=40)
WEIGHTS = "/weights.safetensors"


def problems(**parts: Any) -> list[tuple[str, str, str]]:
    """Field, message and expected values of each problem of a job with these settings."""
    try:
        resolve(JobSpec.model_validate({"dataset": "x", **parts}), FACTS)
    except SpecError as error:
        return [(each.field, each.message, each.expected) for each in error.problems]
    return []


def starting(name: str, **backbone: Any) -> dict[str, Any]:
    normalization = {"mean": [0.5] * 3, "std": [0.5] * 3}
    return {"name": name, "pretrained": WEIGHTS, "stem": "standard", **normalization, **backbone}


@pytest.mark.parametrize(
    ("name", "count", "message", "expected"),
    [
        ("resnet18", 8, "leaves nothing of resnet18 to learn, which has 8 blocks", "at most 7"),
        ("test_vit", 99, "leaves nothing of test_vit to learn, which has 6 blocks", "at most 5"),
        ("caformer_s18", 1, "must be 0 for caformer_s18, whose blocks timm does not", "0"),
    ],
)
def test_frozen_blocks_that_a_network_lacks_are_refused(
    name: str, count: int, message: str, expected: str
) -> None:
    ((field, found, most),) = problems(backbone=starting(name, freeze_blocks=count))
    assert (field, most) == ("backbone.freeze_blocks", expected)
    assert found.startswith(message)
    most_blocks = (BACKBONES[name].blocks or 1) - 1
    assert problems(backbone=starting(name, freeze_blocks=most_blocks)) == []


def test_pooling_of_a_missing_class_token_is_refused() -> None:
    ((field, message, _),) = problems(backbone={"name": "test_vit2", "pooling": "token"})
    assert field == "backbone.pooling"
    assert message == "is the class token, which test_vit2 does not have"


def test_fixed_positions_need_learned_ones() -> None:
    method = {"name": "moco_v3", "positions": "sincos"}
    ((field, message, expected),) = problems(
        method=method, backbone={"name": "vit_small_patch16_dinov3"}
    )
    assert (field, expected) == ("method.positions", "'learned'")
    assert message == "replaces learned positions, which vit_small_patch16_dinov3 does not have"
    assert problems(method=method, backbone={"name": "test_vit"}) == []


@pytest.mark.parametrize(
    ("name", "size", "smallest"),
    [("convnext_atto", 16, 32), ("inception_v3", 64, 75), ("csatv2", 32, 64)],
)
def test_images_that_a_network_cannot_compute_are_refused(
    name: str, size: int, smallest: int
) -> None:
    ((field, message, expected),) = problems(backbone={"name": name, "image_size": size})
    assert (field, expected) == ("backbone.image_size", f"{smallest} or larger")
    assert message.startswith(f"must be at least {smallest} for {name}")
    assert problems(backbone={"name": name, "image_size": smallest}) == []
    automatic = JobSpec.model_validate({"dataset": "x", "backbone": {"name": name}})
    assert resolve(automatic, FACTS).backbone.image_size >= smallest


def test_local_crops_are_large_enough_for_the_network() -> None:
    backbone = {"name": "convnext_atto", "image_size": 32}
    ((field, _, expected),) = problems(backbone=backbone, method={"name": "dino", "local_size": 16})
    assert (field, expected) == ("method.local_size", "32 or larger")
    assert problems(backbone=backbone, method={"name": "dino"}) == []


def test_small_stem_takes_smaller_images() -> None:
    network = {"name": "resnetblur18", "image_size": 8}
    assert problems(backbone={**network, "stem": "small"}) == []
    ((field, _, expected),) = problems(backbone={**network, "stem": "standard"})
    assert (field, expected) == ("backbone.image_size", "17 or larger")


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_smallest_size_of_the_catalog_is_computed(name: str) -> None:
    smallest, multiple = BACKBONES[name].smallest_size, BACKBONES[name].size_multiple
    arguments = {"img_size": smallest} if BACKBONES[name].sizes == "dynamic" else {}
    model = timm.create_model(name, num_classes=0, **arguments)
    for network in (model.eval(), model.train()):
        assert network(torch.randn(2, 3, smallest, smallest)).isfinite().all()
    if smallest - multiple >= 8:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 3, smallest - multiple, smallest - multiple))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_catalog_counts_the_blocks_that_can_be_frozen(name: str) -> None:
    blocks = BACKBONES[name].blocks
    assert blocks is not None
    model = timm.create_model(name, num_classes=0)
    with pytest.raises(ValueError, match="leaves nothing"):
        freeze_first_blocks(model, blocks)
    freeze_first_blocks(model, blocks - 1)


def test_values_of_the_catalog_are_valid() -> None:
    for info in BACKBONES.values():
        assert BackboneInfo.model_validate(info.model_dump()) == info


def test_frequent_shapes_leave_out_what_layouts_differ_in() -> None:
    model = timm.create_model("test_vit", num_classes=0)
    shapes = frequent_shapes(dict(model.named_parameters()), batch_norm=False)
    assert shapes == [((64, 192), 6), ((192, 64), 6)]  # the MLPs, and no projection of attention
    assert BACKBONES["test_vit"].weights == tuple(shapes)
    # DINOv2's gates are packed, as one layer or two; ConvNeXt's linear layers may be 1x1 convolutions.
    assert BACKBONES["vit_giant_patch14_dinov2"].weights == (((1536, 4096), 40),)
    assert all(shape[2:] != (1, 1) for shape, _ in BACKBONES["convnext_atto"].weights)
