"""MoCo v3's loss against the authors' code, its momentum encoder and its heads."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Step, build_method
from dasl_core.methods.moco_v3 import MoCoV3, moco_v3_loss
from dasl_core.seeds import derive_seed
from dasl_core.spec import SpecError
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.methods.moco_v3 import MoCoV3 as Settings
from dasl_core.spec.methods.moco_v3 import ResolvedMoCoV3
from dasl_core.train.serialization import load_state
from tests.support.methods import build_inputs
from tests.support.setting_effects import HEAD, SettingEffects, effects, other
from tests.support.training_world import recorded, resolved


def authors(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """`contrastive_loss` of the authors' code on one process, once for each direction."""

    def one(q: Tensor, k: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
        logits = torch.einsum("nc,mc->nm", [q, k]) / temperature
        return F.cross_entropy(logits, torch.arange(len(q))) * (2 * temperature)

    return one(queries[0], keys[1]) + one(queries[1], keys[0])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(2, 6), st.floats(0.05, 2), st.integers(0, 2**31))
def test_equals_the_authors_and_keys_get_no_gradient(
    samples: int, width: int, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 2, samples, width, generator=generator, dtype=torch.float64)
    ours, reference, keys = (x.clone().requires_grad_() for x in (q, q, k))
    loss, expected = moco_v3_loss(ours, keys, temperature), authors(reference, k, temperature)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=0, atol=1e-12)
    assert keys.grad is None


def method(**changes: Any) -> MoCoV3:
    torch.manual_seed(0)
    values = {"hidden_dim": 5, "projection_dim": 4, "temperature": 0.2, "teacher_momentum": 0.9}
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    return MoCoV3(ResolvedMoCoV3(**values | changes), build_inputs(backbone, 6))


def test_forward_returns_raw_queries_and_momentum_keys() -> None:
    moco, views = method(), [torch.randn(7, 3, 2, 2) for _ in range(2)]
    outputs = moco(views)
    projections = moco.projector(moco.backbone(torch.cat(views)))
    torch.testing.assert_close(outputs["keys"].flatten(0, 1), projections)
    torch.testing.assert_close(outputs["embeddings"].flatten(0, 1), moco.predictor(projections))
    assert (outputs["embeddings"].norm(dim=-1) - 1).abs().max() > 1e-3
    moco.loss(outputs, Step(0, 10, 5, torch.arange(7))).backward()
    for name, parameter in moco.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name


@pytest.mark.parametrize("frozen", [True, False])
def test_vit_patch_projection_can_be_frozen(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, without_plots: None, frozen: bool
) -> None:
    spec = resolved(
        pictures,
        method={"name": "moco_v3", "freeze_patch_projection": frozen},
        backbone={"name": "test_vit"},
        train={"epochs": 1},
    )
    recorder = recorded(spec, pictures, cache, tmp_path)
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    drawn = build_method(spec).state_dict()
    trained = load_state(recorder.last_checkpoint)["method"]
    for name in ("weight", "bias"):
        name = f"backbone.patch_embed.proj.{name}"
        assert torch.equal(trained[name], drawn[name]) == frozen
    assert not torch.equal(trained["backbone.pos_embed"], drawn["backbone.pos_embed"])


def kinds(head: nn.Module) -> str:
    short = {nn.Linear: "L", nn.BatchNorm1d: "B", nn.ReLU: "R"}
    return "".join(short[type(layer)] for layer in head.children())


@pytest.mark.parametrize(
    ("backbone", "projector", "predictor"),
    [("test_vit", "LBRLBRLB", "LBRLB"), ("test_resnet", "LBRLB", "LBRL")],
)
def test_heads_are_those_of_the_authors(
    pictures: DatasetIndex, backbone: str, projector: str, predictor: str
) -> None:
    spec = resolved(pictures, method={"name": "moco_v3"}, backbone={"name": backbone})
    moco = build_method(spec)
    assert isinstance(moco, MoCoV3)
    assert (kinds(moco.projector), kinds(moco.predictor)) == (projector, predictor)
    linear = [layer for head in (moco.projector, moco.predictor) for layer in head.children()]
    assert all(layer.bias is None for layer in linear if isinstance(layer, nn.Linear))
    assert not list(
        [*moco.projector.children()][-1].parameters()
    )  # the last BatchNorm has no weights


def vit_of(index: DatasetIndex, **method: Any) -> nn.Module:
    spec = resolved(
        index,
        method={"name": "moco_v3"} | method,
        backbone={"name": "test_vit", "image_size": 32, "stem": "standard"},
    )
    return build_method(spec).backbone


def test_sincos_positions_are_those_of_the_authors_code(pictures: DatasetIndex) -> None:
    vit = vit_of(pictures, positions="sincos")
    positions = vit.get_parameter("pos_embed")
    assert not positions.requires_grad
    side, quarter = 2, positions.shape[2] // 4
    assert positions.shape[1] == 1 + side**2
    for row, column, channel in product(range(side), range(side), range(quarter)):
        omega = 10_000 ** (-channel / quarter)
        ours = positions[0, 1 + row * side + column, channel::quarter].tolist()
        waves = [f(place * omega) for place in (row, column) for f in (math.sin, math.cos)]
        assert ours == pytest.approx(waves, abs=1e-6)
    assert not positions[0, 0].any(), "the class token"


def test_xavier_weights_have_the_limits_of_the_authors_code(pictures: DatasetIndex) -> None:
    vit = vit_of(pictures, initial_weights="xavier")
    inputs = vit.get_parameter("blocks.0.attn.qkv.weight").shape[1]
    limits = {
        "blocks.0.attn.qkv": inputs + inputs,
        "blocks.0.mlp.fc1": sum(vit.get_parameter("blocks.0.mlp.fc1.weight").shape),
        "patch_embed.proj": 3 * 16 * 16 + inputs,
    }
    for name, fans in limits.items():
        weight = vit.get_parameter(f"{name}.weight")
        assert weight.abs().max().item() == pytest.approx((6 / fans) ** 0.5, rel=0.01), name
        assert weight.std().item() == pytest.approx((2 / fans) ** 0.5, rel=0.05), name
        assert not vit.get_parameter(f"{name}.bias").any()


def test_start_of_a_vit_is_refused_where_it_has_no_effect(pictures: DatasetIndex) -> None:
    method = {"name": "moco_v3", "positions": "sincos", "initial_weights": "xavier"}
    vit = {"name": "test_vit", "mean": [0.5] * 3, "std": [0.5] * 3, "pretrained": "start.pth"}
    for backbone, problem in ({"name": "test_resnet"}, "no effect"), (vit, "would replace"):
        with pytest.raises(SpecError) as raised:
            resolved(pictures, method=method, backbone=backbone, recipe="small")
        fields = [each.field for each in raised.value.problems if problem in each.message]
        assert fields == ["method.positions", "method.initial_weights"]


def test_settings() -> None:
    given = ResolveContext("resnet50", 2048, 224, None, 1_281_167, 4096, 100)
    settings = Settings(
        temperature=0.2,
        teacher_momentum=0.99,
        separate_views=False,
        positions="learned",
        initial_weights="timm",
    )
    for features, hidden in (
        (2048, 4096),
        (384, 4096),
        (64, 768),
    ):  # a ResNet-50, a ViT-S, a small one
        assert settings.resolve(given._replace(features=features)).hidden_dim == hidden


def test_small_recipe_has_the_paper_of_vits(pictures: DatasetIndex) -> None:
    settings = resolved(pictures, method={"name": "moco_v3"}).method
    assert isinstance(settings, ResolvedMoCoV3)
    assert (settings.temperature, settings.teacher_momentum) == (0.2, 0.99)


SETTING_EFFECTS = {
    "moco_v3": SettingEffects(
        HEAD
        | effects("outputs", separate_views=True)
        | effects("loss", temperature=0.7)
        | effects("teacher", teacher_momentum=0.5)
        | effects("kept", keep="teacher")
        | {
            "positions": other("sincos", "network", backbone="test_vit"),
            "initial_weights": other("xavier", "network", backbone="test_vit"),
            "freeze_patch_projection": other(False, "frozen", "rates", backbone="test_vit"),
        },
        lambda s, _, history: moco_v3_loss(
            history[-1][1]["embeddings"], history[-1][1]["keys"], s.temperature
        ),
    )
}
