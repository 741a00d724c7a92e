"""What methods of one kind share: precision, micro-batches, the update of a teacher, and recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import REGISTRY, Step, build_method, nt_xent
from dasl_core.methods.barlow_twins import barlow_twins_loss
from dasl_core.methods.byol import byol_loss
from dasl_core.methods.dino import dino_loss
from dasl_core.methods.ema_teacher import EMATeacherMethod
from dasl_core.methods.moco_v3 import moco_v3_loss
from dasl_core.methods.vicreg import vicreg_loss
from dasl_core.models.ema import Teacher, cosine_momentum
from dasl_core.spec import METHODS
from dasl_core.spec.methods import ResolveContext
from dasl_core.tensors import full_precision
from dasl_core.train.views import build_views
from tests.support.micro_batches import micro_batch_gradients, without_batch_statistics
from tests.support.training_world import Recorder, resolved, run

# Losses of the outputs of student and teacher, or of two views, of which one is enough.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "barlow_twins": lambda z, _: barlow_twins_loss(z, 0.0051),
    "byol": byol_loss,
    "dino": lambda z, t: dino_loss(full_precision(t).softmax(dim=-1), z, 0.1),
    "moco_v3": lambda q, k: moco_v3_loss(q, k, 0.2),
    "simclr": lambda z, _: nt_xent(z, 0.1),
    "vicreg": lambda z, _: vicreg_loss(z, 25, 25, 1),
}
WITH_TEACHER = [name for name, method in REGISTRY.items() if issubclass(method, EMATeacherMethod)]


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_float32(name: str) -> None:
    loss, (a, b) = LOSSES[name], torch.randn(2, 2, 16, 8).bfloat16()
    exact = loss(a.double(), b.double()).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = [loss(a, b), loss(a.float(), b.float())]
    for value in values:
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("name", ["barlow_twins", "byol", "moco_v3", "vicreg"])
def test_micro_batches_give_whole_batch_gradient(pictures: DatasetIndex, name: str) -> None:
    """Compare in float64, with statistics that do not depend on the batch."""
    spec = resolved(pictures, method={"name": name}, backbone={"name": "test_vit"})
    torch.manual_seed(0)
    method = without_batch_statistics(build_method(spec).double())
    assert method.accumulates == (name == "byol")  # the others compare samples
    images = [torch.randn(8, 3, 16, 16, dtype=torch.float64) for _ in range(2)]
    whole, loss, _ = micro_batch_gradients(method, images, micro_batches=1)
    for micro_batches in (2, 4):
        gradients, same, _ = micro_batch_gradients(method, images, micro_batches)
        torch.testing.assert_close(same, loss, rtol=0, atol=1e-12)
        assert gradients.keys() == whole.keys()
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(gradient, whole[parameter], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_forgotten_update_is_reported(pictures: DatasetIndex, name: str) -> None:
    spec = resolved(pictures, method={"name": name})
    method = build_method(spec).train()
    views = build_views(spec.method, spec.augment, spec.backbone.image_size)
    images = [torch.randn(4, 3, view.image_size, view.image_size) for view in views]
    first, second = (Step(index, 40, 20, torch.arange(8)) for index in range(2))
    method.loss(method(images), first)
    method.loss(method(images), first)  # another micro-batch
    with pytest.raises(RuntimeError, match=r"after step 0: call method\.update\(optimizer, step\)"):
        method.loss(method(images), second)
    method.before_update(first)  # whose update may then be skipped
    method.loss(method(images), second)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("name", ["byol", "dino"])
def test_teacher_is_updated_once_per_step_with_micro_batches(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    momenta: list[float] = []
    update = Teacher.update

    def counted(
        teacher: Teacher, *students: nn.Module, momentum: float, where: Tensor | None
    ) -> None:
        momenta.append(momentum)
        update(teacher, *students, momentum=momentum, where=where)

    monkeypatch.setattr(Teacher, "update", counted)
    spec = resolved(pictures, method={"name": name}, train={"micro_batches": 4, "epochs": 2})
    assert run(spec, pictures, cache, Recorder(tmp_path)) == "succeeded"
    assert momenta == [cosine_momentum(0.97, step, 6) for step in range(6)]


@pytest.mark.parametrize(
    ("name", "optimizer", "base_lr", "decay"),
    [
        ("barlow_twins", "lars", 0.2, 1e-6),
        ("byol", "lars", 0.2, 1.5e-6),
        ("moco_v3", "adamw", 1.5e-4, 0.1),
        ("vicreg", "lars", 0.2, 1e-6),
    ],
)
def test_recipe_of_two_different_views_is_that_of_the_authors(
    pictures: DatasetIndex, name: str, optimizer: str, base_lr: float, decay: float
) -> None:
    spec = resolved(
        pictures,
        method={"name": name},
        backbone={"image_size": 96},
        train={"batch_size": 8, "optimizer": {"name": optimizer}},
    )
    assert (spec.augment.blur, spec.augment.solarize) == ((1.0, 0.1), (0.0, 0.2))
    assert [spec.augment.for_view(v).solarize for v in (0, 1)] == [0.0, 0.2]
    assert spec.train.optimizer.lr == pytest.approx(base_lr * 8 / 256)
    assert spec.train.optimizer.weight_decay == decay


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg"])
def test_projector_is_that_of_the_papers_resnet50(name: str) -> None:
    def widths(features: int, **changes: int) -> tuple[int, int]:
        context = ResolveContext("resnet50", features, 224, None, 1_281_167, 2048, 1000)
        settings = METHODS[name].model_validate({"separate_views": False} | changes)
        found = settings.resolve(context)
        return found.projection_dim, found.hidden_dim

    assert widths(2048) == (8192, 8192)
    assert widths(512) == (2048, 2048)
    assert widths(2048, projection_dim=6) == (6, 6)
