"""iBOT and the choices of DINOv2: losses against lightly's and loops, masks, and tokens under them."""

import random
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DINOLoss, IBOTPatchLoss, KoLeoLoss
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Method, Step, build_method
from dasl_core.methods.dino import TemperatureWarmup, dino_loss
from dasl_core.methods.ibot import IBOT, masked_patch_loss
from dasl_core.methods.swav import sinkhorn
from dasl_core.models.backbone import timm_arguments
from dasl_core.models.masked_vit import block_mask, check_has_tokens, vit_tokens
from dasl_core.regularizers.koleo import koleo_loss
from dasl_core.spec import SpecError
from dasl_core.spec.methods.ibot import ResolvedIBOT
from tests.support.gradients import gradient
from tests.support.methods import build_inputs
from tests.support.setting_effects import History, SettingEffects, effects
from tests.support.training_world import resolved

K, WIDTH, SAMPLES = 7, 8, 3
NETWORK: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": WIDTH,
    "depth": 1,
    "num_heads": 2,
    "num_classes": 0,
    "dynamic_img_size": True,
    "num_reg_tokens": 2,
}


def vit() -> nn.Module:
    registers = NETWORK["num_reg_tokens"]
    rest = {name: value for name, value in NETWORK.items() if name != "num_reg_tokens"}
    network: nn.Module = VisionTransformer(**rest, reg_tokens=registers)
    return network


def eva() -> nn.Module:
    """A network of DINOv3's kind: rotary positions, register tokens and an average as its feature."""
    positions = {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "global_pool": "avg"}
    network: nn.Module = Eva(**NETWORK, **positions, use_fc_norm=False)
    return network


def beit() -> nn.Module:
    """A network with relative positions."""
    arguments = {
        n: v for n, v in NETWORK.items() if n not in ("num_reg_tokens", "dynamic_img_size")
    }
    network: nn.Module = Beit(**arguments, global_pool="token", use_shared_rel_pos_bias=True)
    return network


def method(**changes: Any) -> IBOT:
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "hidden_dim": 6,
        "bottleneck_dim": 5,
        "out_dim": K,
        "local_size": 8,
        "local_scale": (0.05, 0.25),
        "mask_probability": 0.7,
        "mask_ratio": (0.2, 0.5),
        "teacher_temperature": 0.05,
        "teacher_temperature_epochs": 0,
        "teacher_momentum": 0.9,
    }
    ibot = IBOT(ResolvedIBOT(**values | changes), build_inputs(vit(), WIDTH))
    with torch.no_grad():
        for parameter in ibot.parameters():
            parameter.normal_(std=0.5)  # a teacher that differs from its student
    return ibot.double()


def crops(local: int = 2) -> list[Tensor]:
    return [torch.randn(SAMPLES, 3, s, s, dtype=torch.float64) for s in [16, 16] + [8] * local]


def step(index: int = 0) -> Step:
    return Step(index, 40, 4, torch.arange(SAMPLES))


# --- the loss


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(0, 2**31))
def test_patch_loss_equals_lightlys(samples: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(samples, 3, 4, generator=generator) < 0.4
    student, teacher = (
        torch.randn(int(mask.sum()), K, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    counts = mask.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    weights = (1 / counts.double() / samples).expand_as(mask)[mask]
    theirs = IBOTPatchLoss(K, teacher_temp=0.05, student_temp=0.2)
    targets = F.softmax(teacher / torch.tensor(0.05), dim=-1)  # their temperature is a float32
    results = []
    for loss in (
        lambda x: masked_patch_loss(targets, x, weights, 0.2),
        lambda x: theirs(teacher, x, mask),
    ):
        x = student.clone().requires_grad_()
        value = loss(x)
        value.backward()
        results.append((value.detach(), gradient(x)))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)  # their weights are float32


def tokens_by_hand(network: Any, images: Tensor, mask: Tensor, token: Tensor) -> Tensor:
    """All tokens (N, 1 + P, D) of a ViT, whose forward is written out."""
    x = network.patch_embed(images).flatten(1, 2)
    x = x * ~mask.unsqueeze(2) + token * mask.unsqueeze(2)
    prefix = torch.cat([network.cls_token, network.reg_token], dim=1).expand(len(x), -1, -1)
    positions = network.pos_embed
    x = torch.cat([prefix, x], dim=1) + positions
    x = network.norm(network.blocks(x))
    return torch.cat([x[:, :1], x[:, 3:]], dim=1)


@pytest.mark.parametrize("dinov2", [False, True])
def test_loss_is_that_of_the_authors_code_on_whole_views(dinov2: bool) -> None:
    """Heads on all patches, losses and centers by loops over views, without the shortcuts of `IBOT`."""
    authors: dict[str, Any] = {"centering": "sinkhorn", "koleo": 0.1, "shared_head": False}
    changes = authors if dinov2 else {}
    ibot, views = method(**changes), crops(local=0)
    masks = ibot.draw_masks(range(SAMPLES))
    assert 0 < masks.sum() < masks.numel()
    if not dinov2:
        ibot.centers.normal_()
    before = None if dinov2 else ibot.centers.clone()
    loss = ibot.loss(ibot(views, masks), step())

    heads, teachers = ibot.heads, ibot.teacher_heads
    student, teacher, class_tokens = [], [], []
    for number, view in enumerate(views):
        nothing = torch.zeros_like(masks[:, number])
        s = tokens_by_hand(ibot.backbone, view, masks[:, number], ibot.mask_token)
        t = tokens_by_hand(ibot.teacher.backbone, view, nothing, ibot.mask_token)
        class_tokens.append(s[:, 0])
        student.append((heads.class_head(s[:, 0]), heads.patch_head(s[:, 1:].flatten(0, 1))))
        teacher.append((teachers.class_head(t[:, 0]), teachers.patch_head(t[:, 1:].flatten(0, 1))))
    chosen = [masks[:, number].flatten() for number in range(2)]
    raw = (
        torch.cat([t for t, _ in teacher]),
        torch.cat([t[m] for (_, t), m in zip(teacher, chosen, strict=True)]),
    )
    if dinov2:
        targets = [sinkhorn_knopp(outputs, 0.05) for outputs in raw]
    else:
        assert before is not None
        targets = [F.softmax((x - c) / 0.05, dim=-1) for x, c in zip(raw, before, strict=True)]
    of_class = targets[0].chunk(2)
    of_patches = targets[1].split([int(m.sum()) for m in chosen])
    expected = torch.zeros((), dtype=torch.float64)
    for q in range(2):
        logs = F.log_softmax(student[1 - q][0] / 0.1, dim=-1)
        expected = expected - (of_class[q] * logs).sum(dim=-1).mean() / 2
        logs = F.log_softmax(student[q][1][chosen[q]] / 0.1, dim=-1)
        losses = torch.zeros(SAMPLES * 16, dtype=torch.float64)
        losses[chosen[q]] = -(of_patches[q] * logs).sum(dim=-1)
        per_image = losses.view(SAMPLES, 16).sum(dim=1) / masks[:, q].sum(dim=1).clamp(min=1)
        expected = expected + per_image.mean() / 2
        if dinov2:
            expected = expected + 0.1 * KoLeoLoss()(class_tokens[q])
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)

    ibot.before_update(step())
    if before is not None:
        means = torch.stack([outputs.mean(dim=0) for outputs in raw])
        torch.testing.assert_close(ibot.centers, 0.9 * before + 0.1 * means)


def sinkhorn_knopp(outputs: Tensor, temperature: float) -> Tensor:
    """The targets of DINOv2's code, in its order of operations."""
    q = torch.exp(outputs / temperature).T
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(dim=1, keepdim=True) * q.shape[0]
        q /= q.sum(dim=0, keepdim=True) * q.shape[1]
    return (q * q.shape[1]).T


def test_masked_patches_of_an_image_are_cut_at_the_largest_share() -> None:
    ibot = method(mask_ratio=(0.2, 0.2))  # of 16 patches 3
    masks = torch.zeros(SAMPLES, 2, 16, dtype=torch.bool)
    masks[0, 0, [2, 5, 7, 9]] = True
    masks[1, 1, 4] = True
    weights = ibot(crops(), masks)["patch_weights"]
    expected = torch.zeros(2, SAMPLES, 3, dtype=torch.float64)
    expected[0, 0], expected[1, 1, 0] = 0.25, 1.0
    assert torch.equal(weights, expected)


def test_class_loss_is_dinos_on_all_crops() -> None:
    ibot = method(mask_probability=0.0)
    outputs = ibot(crops(), ibot.draw_masks(range(SAMPLES)))
    assert not outputs["patch_weights"].any()
    theirs = DINOLoss(K, teacher_temp=0.05, student_temp=0.1).double()
    student, teacher = (
        heads.class_head.outputs(outputs[name])
        for heads, name in ((ibot.heads, "student"), (ibot.teacher_heads, "teacher"))
    )
    torch.testing.assert_close(
        ibot.loss(outputs, step()), theirs(list(teacher), list(student)), rtol=1e-6, atol=0
    )


def test_local_crops_go_through_the_student_only() -> None:
    ibot, views = method(), crops()
    masks = ibot.draw_masks(range(SAMPLES))
    other_views = [*views[:2], *(torch.zeros_like(view) for view in views[2:])]
    one, two = (ibot(each, masks) for each in (views, other_views))
    assert {name for name in one if not torch.equal(one[name], two[name])} == {"student"}


# --- masks


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 16), st.integers(2, 16), st.floats(0.05, 1), st.integers(0, 2**31))
def test_block_mask_hides_at_most_its_share(h: int, w: int, share: float, seed: int) -> None:
    mask = block_mask(h, w, share, random.Random(seed))
    assert mask.shape == (h, w)
    assert mask.dtype == torch.bool
    assert mask.sum() <= share * h * w


def test_block_mask_reaches_its_share_with_blocks() -> None:
    source = random.Random(0)
    masks = torch.stack([block_mask(14, 14, 0.4, source) for _ in range(50)])
    assert 0.37 < masks.double().mean() <= 0.4
    # Most masked patches have a masked right neighbor, of single patches only 40%.
    assert (masks[:, :, 1:] & masks[:, :, :-1]).sum() > 0.8 * masks[:, :, :-1].sum()


def test_masks_do_not_depend_on_the_number_of_ranks() -> None:
    ibot = method()
    whole, share = ibot.draw_masks(range(8)), ibot.draw_masks(range(4, 8))
    assert torch.equal(whole[4:], share)
    assert not torch.equal(whole[:4], share)


@pytest.mark.parametrize("network", [vit, eva, beit])
def test_masked_patches_are_hidden_from_the_network(network: Any) -> None:
    torch.manual_seed(0)
    backbone = network().eval()
    check_has_tokens(backbone, "x")
    images, token = torch.randn(2, 3, 16, 16), torch.randn(WIDTH)
    masks = torch.zeros(2, 16, dtype=torch.bool)
    masks[0, 5] = True
    changed = images.clone()
    changed[:, :, 4:8, 4:8] = 0  # the patch of number 5
    with torch.no_grad():
        one, two = (
            torch.cat([c.unsqueeze(1), p], dim=1)
            for c, p in (vit_tokens(backbone, x, masks, token) for x in (images, changed))
        )
        plain = vit_tokens(backbone, images)
        features = backbone(images)
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1], two[1])
    assert plain[1].shape == (2, 16, WIDTH)
    assert not torch.equal(one[0, 1:], plain[1][0])
    is_average = backbone.global_pool == "avg"
    torch.testing.assert_close(features, plain[1].mean(dim=1) if is_average else plain[0])


# --- settings


def test_network_without_class_and_patch_tokens_is_refused(pictures: DatasetIndex) -> None:
    for name, lacks in (
        ("test_resnet", "has no class token"),
        ("test_vit2", "has no class token"),
        ("cait_s24_224", "has a class token, but no patch tokens"),
    ):
        with pytest.raises(SpecError, match=rf"backbone\.name: {lacks}"):
            resolved(pictures, method={"name": "ibot"}, backbone={"name": name})
    spec = resolved(pictures, method={"name": "ibot"}, backbone={"name": "test_vit"})
    other = spec.backbone.model_copy(update={"name": "test_vit2"})
    spec = spec.model_copy(update={"backbone": other})
    with pytest.raises(ValueError, match=r"backbone\.name: test_vit2 has no class token"):
        build_method(spec)


@pytest.mark.usefixtures("shallow")
def test_features_are_the_trained_class_token(pictures: DatasetIndex) -> None:
    backbone = {"name": "vit_small_patch16_dinov3", "image_size": 32, "stem": "standard"}
    spec = resolved(pictures, method={"name": "ibot"}, backbone=backbone)
    assert spec.backbone.pooling == "token"
    network = build_method(spec).representation.eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = network(images)
        torch.testing.assert_close(features, vit_tokens(network, images)[0])
        exported = timm.create_model(**timm_arguments(spec.backbone)).eval()
        exported.load_state_dict(network.state_dict())
        torch.testing.assert_close(exported(images), features)


def test_pooling_of_class_token_is_chosen_where_it_is_trained(pictures: DatasetIndex) -> None:
    def pooling(name: str, method: str = "simclr", **backbone: Any) -> str:
        settings = {"name": name, "image_size": 32, "stem": "standard"} | backbone
        crops: dict[str, Any] = {"local_crops": 0} if method == "ibot" else {}
        spec = resolved(pictures, method={"name": method} | crops, backbone=settings)
        return spec.backbone.pooling

    weights: dict[str, Any] = {"pretrained": "/w.pth", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    assert pooling("vit_small_patch16_dinov3", **weights) == "token"
    assert pooling("vit_small_patch16_dinov3", pooling="timm") == "timm"
    assert pooling("test_vit") == "timm"
    assert pooling("test_vit", "ibot") == "token"
    assert pooling("eva02_tiny_patch14_224", "ibot", **weights | {"image_size": 28}) == "token"
    assert pooling("eva02_tiny_patch14_224", **weights | {"image_size": 28}) == "timm"
    with pytest.raises(SpecError, match=r"backbone\.pooling: is not known for test_resnet"):
        pooling("test_resnet", pooling="token")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mask_ratio": (0.1, 0.2)}, "method.mask_ratio"),
        ({"centering": "sinkhorn", "center_momentum": 0.5}, "method.center_momentum"),
        ({"centering": "sinkhorn", "teacher_temperature": 0.01}, "method.teacher_temperature"),
    ],
)
def test_setting_without_effect_is_refused(
    pictures: DatasetIndex, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolved(pictures, method={"name": "ibot", **changes}, backbone={"stem": "standard"})
    assert [problem.field for problem in error.value.problems] == [field]


def loss_by_settings(settings: Any, method: Method, history: History) -> Tensor:
    assert isinstance(method, IBOT)
    temperature = TemperatureWarmup(
        settings.teacher_temperature_start,
        settings.teacher_temperature,
        settings.teacher_temperature_epochs,
    )
    centers = torch.zeros(2, settings.out_dim)
    for at, outputs in history:
        weights = outputs["patch_weights"]
        masked = weights != 0
        with torch.no_grad():
            whole = method.teacher_heads.class_head.outputs(outputs["teacher"])
            patches = method.teacher_heads.patch_head.outputs(outputs["teacher_patches"][masked])
        if at is history[-1][0]:
            break
        means = torch.stack([whole.mean(dim=(0, 1)), patches.sum(dim=0) / len(patches)])
        centers = centers.lerp(means, 1 - settings.center_momentum)
    t = temperature(at.epoch)
    if settings.centering == "sinkhorn":
        targets = [sinkhorn(x, t, 3) for x in (whole.flatten(0, 1), patches)]
    else:
        targets = [
            F.softmax((x - center) / t, dim=-1)
            for x, center in zip((whole.flatten(0, 1), patches), centers, strict=True)
        ]
    student = method.heads.class_head.outputs(outputs["student"])
    loss = dino_loss(targets[0].view_as(whole), student, settings.student_temperature)
    predictions = method.heads.patch_head.outputs(outputs["student_patches"][masked])
    each = weights[masked] / weights[..., 0].numel()
    loss = loss + masked_patch_loss(targets[1], predictions, each, settings.student_temperature)
    if settings.koleo:
        images = torch.arange(weights.shape[1])
        spread = [koleo_loss(view, images) for view in outputs["class_tokens"]]
        loss = loss + settings.koleo * torch.stack(spread).sum()
    return loss


SETTING_EFFECTS = {
    "ibot": SettingEffects(
        effects("views", "outputs", "loss", local_crops=3)
        | effects("views", "outputs", local_size=16)
        | effects("views", local_scale=(0.1, 0.3))
        | effects(
            "network",
            bottleneck_dim=11,
            hidden_dim=13,
            out_dim=20,
            shared_head=False,
            centering="sinkhorn",
        )
        | effects("outputs", mask_probability=1.0)
        | effects("outputs", "loss", mask_ratio=(0.3, 0.75))
        | effects(
            "loss",
            koleo=0.3,
            student_temperature=0.7,
            teacher_temperature=0.3,
            teacher_temperature_start=0.3,
            teacher_temperature_epochs=3,
            center_momentum=0.5,
        )
        | effects("teacher", teacher_momentum=0.5)
        | effects("frozen", freeze_last_layer_epochs=2)
        | effects("kept", keep="student"),
        loss_by_settings,
        base={"teacher_temperature": 0.07},
    )
}
