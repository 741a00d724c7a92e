"""DINO against lightly's loss, and details of its paper: center, temperatures, last layer, crops."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DINOLoss
from lightly.models.modules import DINOProjectionHead
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import DINOLoss as OwnDINOLoss
from dasl_core.methods import Method, Step, build_method
from dasl_core.methods.dino import DINO, TemperatureWarmup, dino_loss
from dasl_core.models.heads import DINOHead, UnitLinear
from dasl_core.seeds import derive_seed
from dasl_core.spec import Clip, ResolvedJobSpec
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.methods.dino import DINO as Settings
from dasl_core.spec.methods.dino import ResolvedDINO
from dasl_core.train.serialization import load_state
from dasl_core.train.update import Updater
from dasl_core.train.views import build_views
from tests.support.gradients import gradient
from tests.support.methods import build_inputs
from tests.support.micro_batches import micro_batch_gradients, without_batch_statistics
from tests.support.setting_effects import LOCAL_CROPS, History, SettingEffects, effects
from tests.support.training_world import recorded, resolved

K = 12


class Pooled(nn.Module):
    """A network for images of any size that counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 6)
        self.seen: list[torch.Size] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.shape)
        embeddings: Tensor = self.linear(images.mean(dim=(2, 3)))
        return embeddings


def method(**changes: Any) -> DINO:
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "hidden_dim": 5,
        "bottleneck_dim": 4,
        "out_dim": K,
        "local_size": 8,
        "local_scale": (0.05, 0.4),
        "teacher_temperature": 0.07,
        "teacher_temperature_epochs": 3,
        "teacher_momentum": 0.9,
    }
    return DINO(ResolvedDINO(**values | changes), build_inputs(Pooled(), 6))


def crops(samples: int = 5, local: int = 3) -> list[Tensor]:
    sizes = [8, 8] + [4] * local
    return [torch.randn(samples, 3, size, size) for size in sizes]


def step(index: int = 0, samples: int = 5) -> Step:
    return Step(index, 40, 4, torch.arange(samples))


def outputs_of(student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
    return {"embeddings": student[:2], "student": student, "teacher": teacher}


# --- the loss


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 3), st.integers(0, 2**31))
def test_equals_lightlys(samples: int, width: int, local: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(2 + local, samples, width, generator=generator, dtype=torch.float64)
    teacher = torch.randn(2, samples, width, generator=generator, dtype=torch.float64)
    theirs = DINOLoss(width, teacher_temp=0.05, student_temp=0.2).double()
    # Their temperature is a float32.
    targets = F.softmax(teacher / torch.tensor(0.05), dim=-1)
    ours, reference = (student.clone().requires_grad_() for _ in range(2))
    loss = dino_loss(targets, ours, 0.2)
    expected = theirs(list(teacher), list(reference))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, reference.grad, rtol=0, atol=1e-12)


def test_steps_with_their_centres_and_temperatures_equal_lightlys() -> None:
    dino = method().double()
    theirs = DINOLoss(K, 0.04, 0.07, warmup_teacher_temp_epochs=3, student_temp=0.1).double()
    for index in range(20):  # five epochs of four
        now = step(index)
        student = torch.randn(4, 5, K, dtype=torch.float64)
        teacher = torch.randn(2, 5, K, dtype=torch.float64) + 1
        loss = dino.loss(outputs_of(student, teacher), now)
        expected = theirs(list(teacher), list(student), epoch=now.epoch)
        # Their temperature is a float32.
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        dino.before_update(now)
        torch.testing.assert_close(dino.center, theirs.center.flatten(), rtol=0, atol=1e-12)
    assert dino.center.mean() > 0.5


def test_teacher_temperature_grows_in_first_epochs() -> None:
    warmup = TemperatureWarmup(0.04, 0.07, 4)
    expected = [0.04, 0.05, 0.06, 0.07, 0.07, 0.07]
    assert [warmup(epoch) for epoch in range(6)] == pytest.approx(expected)
    assert TemperatureWarmup(0.04, 0.07, 0)(0) == 0.07
    assert TemperatureWarmup(0.04, 0.07, 1)(0) == 0.04
    assert TemperatureWarmup(0.04, 0.07, 1)(1) == 0.07


# --- the center


def test_loss_with_its_own_center_equals_lightlys() -> None:
    ours = OwnDINOLoss(K, teacher_temperature=TemperatureWarmup(0.04, 0.07, 3)).double()
    theirs = DINOLoss(K, 0.04, 0.07, warmup_teacher_temp_epochs=3, student_temp=0.1).double()
    for index in range(8):
        student = torch.randn(4, 5, K, dtype=torch.float64)
        teacher = torch.randn(2, 5, K, dtype=torch.float64) + 1
        loss = ours(student, teacher, epoch=index // 2)
        expected = theirs(list(teacher), list(student), epoch=index // 2)
        # Their temperature is a float32.
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.center, theirs.center.flatten(), rtol=0, atol=1e-12)
    assert ours.state_dict()["center"].mean() > 0.5


def test_center_does_not_move_in_eval_mode() -> None:
    ours, dino = OwnDINOLoss(K).eval(), method().eval()
    student, teacher = torch.randn(4, 5, K), torch.randn(2, 5, K)
    ours(student, teacher)
    dino.loss(outputs_of(student, teacher), step(0))
    dino.loss(outputs_of(student, teacher), step(1))
    assert torch.equal(ours.center, torch.zeros(K))
    assert not dino._target_statistics


def test_own_loop_moves_center_and_teacher() -> None:
    dino = method()
    optimizer = torch.optim.SGD([p for p in dino.parameters() if p.requires_grad], lr=0.1)
    weight = dino.teacher.get_parameter("head.last_layer.weight")
    before = weight.clone()
    for index in (0, 4):
        dino.loss(dino(crops()), step(index)).backward()
        dino.update(optimizer, step(index))
    assert dino.center.abs().max() > 0
    assert not torch.equal(weight, before)
    assert all(parameter.grad is None for parameter in dino.parameters())


@pytest.mark.parametrize("broken", [True, False])
def test_skipped_step_restores_center(broken: bool) -> None:
    dino = method()
    optimizer = torch.optim.SGD([p for p in dino.parameters() if p.requires_grad], lr=0.1)
    updater = Updater(optimizer, None, [*dino.buffers()], torch.device("cpu"), scaled=False)
    updater.snapshot_buffers()
    dino.loss(dino(crops()), step()).backward()
    if broken:
        gradient(dino.backbone.get_parameter("linear.weight")).fill_(float("nan"))
    dino.before_update(step())
    assert dino.center.abs().max() > 0
    _, updated = updater.apply()
    assert updated == (not broken)
    assert torch.equal(dino.center, torch.zeros(K)) == broken


# --- the network


def test_local_crops_pass_student_only_once_per_size() -> None:
    dino, images = method(), crops(samples=5, local=3)
    outputs = dino(images)
    assert dino.backbone.seen == [(10, 3, 8, 8), (15, 3, 4, 4)]
    assert dino.teacher.backbone.seen == [(10, 3, 8, 8)]
    assert outputs["embeddings"].shape == (2, 5, 4)
    assert outputs["student"].shape == (5, 5, K)
    assert outputs["teacher"].shape == (2, 5, K)
    for view, image in enumerate(images):
        own = dino.head(dino.backbone(image))
        torch.testing.assert_close(outputs["student"][view], own)


def test_teacher_starts_as_copy_of_student_with_head() -> None:
    outputs = method()(crops())
    torch.testing.assert_close(outputs["teacher"], outputs["student"][:2])
    assert not outputs["teacher"].requires_grad
    # Raw: the head normalizes them before its last layer.
    assert (outputs["embeddings"].norm(dim=-1) - 1).abs().max() > 1e-3


def test_without_local_crops_student_runs_once() -> None:
    dino = method()
    outputs = dino(crops(local=0))
    assert isinstance(dino.backbone, Pooled)
    assert len(dino.backbone.seen) == 1
    assert torch.isfinite(dino.loss(outputs, step()))


def test_micro_batches_give_whole_batch_gradients_and_center(pictures: DatasetIndex) -> None:
    spec = resolved(
        pictures, method={"name": "dino"}, backbone={"name": "test_vit", "stem": "small"}
    )
    torch.manual_seed(0)
    dino = without_batch_statistics(build_method(spec).double())
    assert isinstance(dino, DINO)
    assert dino.accumulates
    images = [torch.randn(8, 3, size, size, dtype=torch.float64) for size in (16, 16, 8, 8)]
    results: list[dict[str, Tensor]] = []
    for micro_batches in (1, 2, 4):
        dino.center.zero_()
        gradients, loss, _ = micro_batch_gradients(dino, images, micro_batches)
        assert torch.equal(dino.center, torch.zeros_like(dino.center))  # not once per micro-batch
        dino.before_update(step())
        figures = {name: value.double() for name, value in dino.metrics({}, step()).items()}
        results.append(gradients | {"center": dino.center.clone(), "loss": loss} | figures)
    whole = results[0]
    assert whole["center"].abs().max() > 1e-4
    for gradients in results[1:]:
        assert gradients.keys() == whole.keys()
        for name, value in gradients.items():
            # timm interpolates position embeddings in float32.
            tolerance = 1e-6 if name == "backbone.pos_embed" else 1e-12
            torch.testing.assert_close(value, whole[name], rtol=0, atol=tolerance)


# --- the last layer


@pytest.mark.parametrize("batch_norm", [False, True])
def test_head_equals_lightlys(batch_norm: bool) -> None:
    torch.manual_seed(0)
    ours = DINOHead(6, 16, 8, K, batch_norm=batch_norm).double()
    theirs = DINOProjectionHead(6, 16, 8, K, batch_norm=batch_norm).double()
    linear = [layer for layer in ours.mlp if isinstance(layer, nn.Linear)]
    for mine, reference in zip(
        linear, [layer for layer in theirs.layers if isinstance(layer, nn.Linear)], strict=True
    ):
        nn.init.normal_(mine.weight)
        reference.weight.data.copy_(mine.weight)
        if reference.bias is not None:
            reference.bias.data.copy_(nn.init.normal_(mine.bias))
    (direction,) = (p for name, p in theirs.last_layer.named_parameters() if p.shape[-1] == 8)
    direction.data.copy_(ours.last_layer.weight)
    features = torch.randn(10, 6, dtype=torch.float64)
    torch.testing.assert_close(ours(features), theirs(features))


def test_outputs_of_head_are_float32_under_autocast() -> None:
    dino = method()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = dino(crops(local=0))
    assert outputs["embeddings"].dtype == torch.bfloat16
    assert outputs["student"].dtype == outputs["teacher"].dtype == torch.float32
    exact = dino.head.outputs(outputs["embeddings"].float())
    torch.testing.assert_close(outputs["student"], exact, rtol=0, atol=0)


@pytest.mark.parametrize("learned", [False, True])
def test_last_layer_is_that_of_weight_normalization(learned: bool) -> None:
    layer = UnitLinear(4, 6, learned_lengths=learned).double()
    reference = weight_norm(nn.Linear(4, 6, bias=False), dim=0).double()
    lengths, directions = reference.parameters()
    with torch.no_grad():
        lengths.copy_(torch.ones(6, 1))
        directions.copy_(layer.weight.mul_(torch.rand(6, 1) + 0.5))
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), reference(x))
    for network in (layer, reference):
        network(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, directions.grad)
    assert (layer.lengths is not None) == learned
    if layer.lengths is not None:
        torch.testing.assert_close(layer.lengths.grad, lengths.grad)


def last_layer(folder: Path) -> Tensor:
    weight = load_state(folder)["method"]["head.last_layer.weight"]
    assert isinstance(weight, Tensor)
    return weight


def test_last_layer_is_frozen_in_first_epoch(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, without_plots: None
) -> None:
    train = {"optimizer": {"name": "adamw"}, "epochs": 2}
    spec = resolved(pictures, method={"name": "dino"}, train=train, evaluate={"holdout": None})
    assert spec.train.optimizer.weight_decay > 0  # weight decay does not affect it either
    recorder = recorded(spec, pictures, cache, tmp_path)
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    drawn = build_method(spec).get_submodule("head")
    first, second = (last_layer(folder) for _, folder, _ in recorder.checkpoints[:2])
    assert torch.equal(first, drawn.get_parameter("last_layer.weight"))
    assert not torch.equal(second, drawn.get_parameter("last_layer.weight"))
    other = load_state(recorder.checkpoints[0][1])["method"]["head.mlp.0.weight"]
    assert not torch.equal(other, drawn.get_parameter("mlp.0.weight")), (
        "the rest of the head learns"
    )


# --- metrics


def test_metrics_tell_uniform_and_constant_outputs() -> None:
    dino = method()
    student, ln = torch.randn(2, 64, K), math.log(K)

    def figures(teacher: Tensor) -> dict[str, float]:
        dino.center.zero_()
        dino.loss(outputs_of(student, teacher), step())
        dino.before_update(step())
        return {name: value.item() for name, value in dino.metrics({}, step()).items()}

    uniform = figures(torch.zeros(2, 64, K))
    assert uniform["output_entropy"] == pytest.approx(ln, rel=1e-5)
    assert uniform["output_usage"] == pytest.approx(ln, rel=1e-5)
    constant = figures(torch.eye(K)[3].expand(2, 64, K))
    assert constant["output_entropy"] < 0.01
    assert constant["output_usage"] < 0.01
    spread = figures(torch.eye(K)[torch.arange(64) % K].expand(2, 64, K))
    assert spread["output_entropy"] < 0.01
    assert spread["output_usage"] > 0.99 * ln
    assert spread["num_outputs"] == K
    assert spread["teacher_temperature"] == pytest.approx(0.04)
    assert spread["teacher_momentum"] == pytest.approx(0.9)


# --- settings


def large(index: DatasetIndex, **changes: Any) -> ResolvedJobSpec:
    return resolved(index, method={"name": "dino"}, backbone={"image_size": 96}, **changes)


def test_recipe_is_that_of_the_paper(pictures: DatasetIndex) -> None:
    spec = large(pictures, train={"batch_size": 8, "optimizer": {"name": "adamw"}})
    views = build_views(spec.method, spec.augment, spec.backbone.image_size)
    assert [view.augment.blur for view in views] == [1.0, 0.1, 0.5, 0.5]
    assert [view.augment.solarize for view in views] == [0.0, 0.2, 0.0, 0.0]
    assert [view.augment.crop_scale for view in views] == [(0.4, 1.0)] * 2 + [(0.05, 0.4)] * 2
    assert [view.image_size for view in views] == [96, 96, 41, 41]
    assert spec.train.clip == Clip(norm=3.0, each=True)
    optimizer = spec.train.optimizer
    assert (optimizer.weight_decay, optimizer.weight_decay_end) == (0.04, 0.4)
    assert optimizer.lr == pytest.approx(5e-4 * 8 / 256)


def facts(**changes: Any) -> ResolveContext:
    known = ResolveContext(
        backbone="resnet50",
        features=384,
        image_size=224,
        patch_size=16,
        crop_multiple=16,
        train_images=1_281_167,
        batch_size=1024,
        epochs=100,
    )
    return known._replace(**changes)


def settled(context: ResolveContext, **changes: Any) -> ResolvedDINO:
    settings = Settings(norm_last_layer=True, local_scale=(0.05, 0.4), **changes)
    settled = settings.resolve(context)
    assert isinstance(settled, ResolvedDINO)
    return settled


def test_imagenet_settings_are_those_of_the_paper() -> None:
    config = settled(facts())
    assert (config.hidden_dim, config.bottleneck_dim, config.out_dim) == (2048, 256, 65_536)
    assert config.local_size == 96
    assert config.teacher_momentum == 0.996
    assert (config.teacher_temperature_start, config.teacher_temperature) == (0.04, 0.07)
    assert config.teacher_temperature_epochs == 30
    assert settled(facts(epochs=800)).teacher_temperature_epochs == 30


@pytest.mark.parametrize(
    ("images", "outputs"),
    [(10, 1024), (32_767, 1024), (32_768, 2048), (50_000, 2048), (10**7, 65_536)],
)
def test_number_of_outputs_follows_dataset_size(images: int, outputs: int) -> None:
    assert settled(facts(train_images=images)).out_dim == outputs
    assert settled(facts(train_images=images), out_dim=7).out_dim == 7


def test_short_trainings_have_faster_and_sharper_teachers() -> None:
    short = facts(train_images=1000, batch_size=100, epochs=40)  # 400 steps
    assert settled(short).teacher_momentum == 0.97
    assert settled(short).teacher_temperature_epochs == 12
    assert settled(short).teacher_temperature == 0.04
    assert settled(short, teacher_temperature_start=0.03).teacher_temperature == 0.03
    assert settled(short, teacher_temperature=0.06).teacher_temperature == 0.06
    assert settled(short._replace(epochs=1000)).teacher_temperature == 0.07
    assert settled(short._replace(epochs=400)).teacher_momentum == 0.99
    assert settled(short, teacher_momentum=0.5).teacher_momentum == 0.5


@pytest.mark.parametrize(
    ("targets", "outputs", "temperature", "expected"),
    [
        ((2, 1, 5), (2, 4, 5), 0.1, "targets and outputs must have the shapes"),
        ((2, 4), (2, 4), 0.1, "targets and outputs must have the shapes"),
        ((1, 4, 5), (1, 4, 5), 0.1, "outputs must be of at least 2 views"),
        ((3, 4, 5), (2, 4, 5), 0.1, "outputs must be of .* all views of targets"),
        ((2, 4, 5), (2, 4, 5), 0.0, "temperature must be a finite number above 0"),
    ],
)
def test_loss_errors_name_wrong_argument(
    targets: tuple[int, ...], outputs: tuple[int, ...], temperature: float, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        dino_loss(torch.ones(targets), torch.ones(outputs), temperature)


def loss_by_settings(settings: Any, method: Method, history: History) -> Tensor:
    temperature = TemperatureWarmup(
        settings.teacher_temperature_start,
        settings.teacher_temperature,
        settings.teacher_temperature_epochs,
    )
    center = torch.zeros(settings.out_dim)
    for _, outputs in history[:-1]:
        center = center.lerp(outputs["teacher"].mean(dim=(0, 1)), 1 - settings.center_momentum)
    step, outputs = history[-1]
    targets = F.softmax((outputs["teacher"] - center) / temperature(step.epoch), dim=-1)
    return dino_loss(targets, outputs["student"], settings.student_temperature)


SETTING_EFFECTS = {
    "dino": SettingEffects(
        LOCAL_CROPS
        | effects(
            "network",
            bottleneck_dim=11,
            hidden_dim=13,
            head_batch_norm=True,
            norm_last_layer=False,
            out_dim=20,
        )
        | effects(
            "loss",
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
