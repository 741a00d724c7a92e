"""Training steps made of lightly's parts, assembled as in the examples of its documentation."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import timm
import torch
from lightly.loss import DINOLoss, NegativeCosineSimilarity, NTXentLoss
from lightly.models.modules import (
    BYOLPredictionHead,
    BYOLProjectionHead,
    DINOProjectionHead,
    SimCLRProjectionHead,
)
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn

from dasl_core.spec.backbones import BACKBONES

Step = Callable[[list[Tensor]], None]

# Of the momentum's schedule; its value does not change the time of a step.
_STEPS = 4000


@dataclass(frozen=True)
class Setup:
    """What a step trains, and how.

    Attributes:
        backbone: timm's name of it.
        half: whether the network runs in bfloat16.
        optimizer: makes one for the weights that learn.
        dino_head: hidden width, width of the bottleneck, and number of outputs.
    """

    backbone: str
    image_size: int
    device: torch.device
    half: bool
    channels_last: bool
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    dino_head: tuple[int, int, int] = (512, 64, 2048)

    def network(self) -> tuple[nn.Module, int]:
        """Return the backbone with random weights, and the width of its features."""
        # Local crops are smaller than the images.
        dynamic = BACKBONES[self.backbone].sizes == "dynamic"
        sizes = {"img_size": self.image_size, "dynamic_img_size": True} if dynamic else {}
        model = timm.create_model(self.backbone, num_classes=0, **sizes)
        return model, int(model.num_features)

    def placed(self, modules: list[nn.Module]) -> nn.ModuleList:
        """Move modules to the device, in training mode."""
        model = nn.ModuleList(modules).to(self.device)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        return model.train()

    def update(self, modules: nn.ModuleList) -> Callable[[Callable[[], Tensor]], None]:
        """Return a function for loss, backward and update."""
        optimizer = self.optimizer([each for each in modules.parameters() if each.requires_grad])

        def apply(loss_of: Callable[[], Tensor]) -> None:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
                loss = loss_of()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        return apply


def simclr(setup: Setup) -> Step:
    """Return the step of lightly's examples/pytorch/simclr.py."""
    backbone, width = setup.network()
    model = setup.placed([backbone, SimCLRProjectionHead(width, width, 128)])
    criterion, apply = NTXentLoss(), setup.update(model)

    def embed(images: Tensor) -> Tensor:
        return model[1](model[0](images).flatten(start_dim=1))  # type: ignore[no-any-return]

    def step(views: list[Tensor]) -> None:
        apply(lambda: criterion(embed(views[0]), embed(views[1])))

    return step


def byol(setup: Setup) -> Step:
    """Return the step of lightly's examples/pytorch/byol.py."""
    backbone, width = setup.network()
    head, predictor = BYOLProjectionHead(width, 1024, 256), BYOLPredictionHead(256, 1024, 256)
    teacher, teacher_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(teacher)
    deactivate_requires_grad(teacher_head)
    model = setup.placed([backbone, head, predictor, teacher, teacher_head])
    criterion, apply = NegativeCosineSimilarity(), setup.update(model)
    done = [0]

    def predict(images: Tensor) -> Tensor:
        return model[2](model[1](model[0](images).flatten(start_dim=1)))  # type: ignore[no-any-return]

    def target(images: Tensor) -> Tensor:
        with torch.no_grad():
            projected: Tensor = model[4](model[3](images).flatten(start_dim=1))
        return projected.detach()

    def loss(views: list[Tensor]) -> Tensor:
        p0, z0 = predict(views[0]), target(views[0])
        p1, z1 = predict(views[1]), target(views[1])
        both: Tensor = 0.5 * (criterion(p0, z1) + criterion(p1, z0))
        return both

    def step(views: list[Tensor]) -> None:
        momentum = cosine_schedule(done[0], _STEPS, 0.996, 1)
        done[0] += 1
        update_momentum(model[0], model[3], m=momentum)
        update_momentum(model[1], model[4], m=momentum)
        apply(lambda: loss(views))

    return step


def dino(setup: Setup) -> Step:
    """Return the step of lightly's examples/pytorch/dino.py."""
    backbone, width = setup.network()
    hidden, bottleneck, outputs = setup.dino_head
    teacher = copy.deepcopy(backbone)
    head = DINOProjectionHead(width, hidden, bottleneck, outputs, freeze_last_layer=1)
    teacher_head = DINOProjectionHead(width, hidden, bottleneck, outputs)
    deactivate_requires_grad(teacher)
    deactivate_requires_grad(teacher_head)
    model = setup.placed([backbone, head, teacher, teacher_head])
    criterion = DINOLoss(output_dim=outputs, warmup_teacher_temp_epochs=5).to(setup.device)
    apply = setup.update(model)
    done = [0]

    def loss(views: list[Tensor]) -> Tensor:
        with torch.no_grad():
            targets = [model[3](model[2](view).flatten(start_dim=1)) for view in views[:2]]
        students = [model[1](model[0](view).flatten(start_dim=1)) for view in views]
        value: Tensor = criterion(targets, students, epoch=2)
        return value

    def step(views: list[Tensor]) -> None:
        momentum = cosine_schedule(done[0], _STEPS, 0.996, 1)
        done[0] += 1
        update_momentum(model[0], model[2], m=momentum)
        update_momentum(model[1], model[3], m=momentum)
        apply(lambda: loss(views))

    return step


STEPS: dict[str, Callable[[Setup], Step]] = {"simclr": simclr, "byol": byol, "dino": dino}
