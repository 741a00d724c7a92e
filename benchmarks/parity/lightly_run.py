"""Trainings with lightly, assembled as its examples in plain PyTorch, for `benchmarks.parity`.

Needs lightly 1.6 and timm, and nothing of DASL.
"""

import copy
import itertools
from typing import Any, cast

import numpy as np
import timm
import torch
from lightly.loss import (
    BarlowTwinsLoss,
    DINOLoss,
    NegativeCosineSimilarity,
    NTXentLoss,
    VICRegLoss,
)
from lightly.models.modules import (
    BarlowTwinsProjectionHead,
    BYOLPredictionHead,
    BYOLProjectionHead,
    DINOProjectionHead,
    SimCLRProjectionHead,
)
from lightly.models.modules.heads import VICRegProjectionHead
from lightly.models.utils import (
    deactivate_requires_grad,
    get_weight_decay_parameters,
    update_momentum,
)
from lightly.transforms import SimCLRTransform
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from PIL import Image
from torch import Tensor, nn

from benchmarks.parity import recipe
from benchmarks.parity.jobs import Job, run_jobs


class Pair(nn.Module):
    """A backbone, a head, and a loss of the outputs of two views: SimCLR, VICReg and Barlow Twins."""

    def __init__(self, backbone: nn.Module, head: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head, self.criterion = backbone, head, criterion

    def loss(self, views: list[Tensor]) -> Tensor:
        """Compute the loss of two views."""
        first, second = (self.head(self.backbone(view)) for view in views)
        return cast(Tensor, self.criterion(first, second))

    def update_teacher(self, momentum: float) -> None:
        """There is none."""


class Taught(Pair):
    """The same with a teacher."""

    def __init__(self, backbone: nn.Module, head: nn.Module, criterion: nn.Module) -> None:
        super().__init__(backbone, head, criterion)
        self.teacher, self.teacher_head = copy.deepcopy(backbone), self.copy_of(head)
        deactivate_requires_grad(self.teacher)
        deactivate_requires_grad(self.teacher_head)

    def copy_of(self, head: nn.Module) -> nn.Module:
        """Return a copy of the head."""
        return copy.deepcopy(head)

    def update_teacher(self, momentum: float) -> None:
        """Before each step, as in lightly's examples."""
        update_momentum(self.backbone, self.teacher, m=momentum)
        update_momentum(self.head, self.teacher_head, m=momentum)

    @torch.no_grad()
    def targets(self, views: list[Tensor]) -> list[Tensor]:
        """Compute the teacher's outputs."""
        return [self.teacher_head(self.teacher(view)) for view in views]


class BYOL(Taught):
    """lightly's examples/pytorch/byol.py."""

    def __init__(self, backbone: nn.Module) -> None:
        head = BYOLProjectionHead(WIDTH, recipe.HIDDEN, recipe.OUTPUTS)
        super().__init__(backbone, head, NegativeCosineSimilarity())
        self.predictor = BYOLPredictionHead(recipe.OUTPUTS, recipe.HIDDEN, recipe.OUTPUTS)

    def loss(self, views: list[Tensor]) -> Tensor:
        z0, z1 = self.targets(views)
        p0, p1 = (self.predictor(self.head(self.backbone(view))) for view in views)
        return cast(Tensor, 0.5 * (self.criterion(p0, z1) + self.criterion(p1, z0)))


class DINO(Taught):
    """lightly's examples/pytorch/dino.py, but the teacher's head starts as the student's."""

    def __init__(self, backbone: nn.Module) -> None:
        criterion = DINOLoss(
            recipe.PROTOTYPES,
            teacher_temp=recipe.TEACHER,
            warmup_teacher_temp=recipe.TEACHER,
            warmup_teacher_temp_epochs=0,
            student_temp=recipe.STUDENT,
            center_momentum=recipe.CENTER,
        )
        super().__init__(backbone, self.new_head(), criterion)

    def new_head(self) -> nn.Module:
        """Return a head with random weights."""
        sizes = (WIDTH, recipe.HIDDEN, recipe.BOTTLENECK, recipe.PROTOTYPES)
        return cast(nn.Module, DINOProjectionHead(*sizes, batch_norm=True))

    def copy_of(self, head: nn.Module) -> nn.Module:
        copied = self.new_head()  # a layer with weight normalization cannot be copied
        copied.load_state_dict(head.state_dict())
        return copied

    def loss(self, views: list[Tensor]) -> Tensor:
        targets = self.targets(views)
        students = [self.head(self.backbone(view)) for view in views]
        return cast(Tensor, self.criterion(targets, students))


WIDTH = recipe.RECIPES["fashion"].width


def build(method: str, backbone: nn.Module) -> Pair:
    """Return the modules of a method."""
    wide = (WIDTH, recipe.EXPANDED, recipe.EXPANDED)
    if method == "simclr":
        head = SimCLRProjectionHead(WIDTH, recipe.HIDDEN, recipe.OUTPUTS)
        return Pair(backbone, head, NTXentLoss(temperature=recipe.TEMPERATURE))
    if method == "vicreg":
        return Pair(backbone, VICRegProjectionHead(*wide), VICRegLoss())
    if method == "barlow_twins":
        criterion = BarlowTwinsLoss(lambda_param=recipe.REDUNDANCY)
        return Pair(backbone, BarlowTwinsProjectionHead(*wide), criterion)
    return {"byol": BYOL, "dino": DINO}[method](backbone)


class Images(torch.utils.data.Dataset[list[Tensor]]):
    """Images in memory, as two views."""

    def __init__(self, images: np.ndarray, transform: Any) -> None:
        self.images, self.transform = [Image.fromarray(image) for image in images], transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        views: list[Tensor] = self.transform(self.images[index])
        return views


def train(job: Job) -> nn.Module:
    """Train, and return the backbone."""
    r = job.recipe
    torch.manual_seed(job.seed)
    transform = SimCLRTransform(
        input_size=r.image_size,
        cj_strength=r.jitter,
        min_scale=r.crop_scale,
        hf_prob=r.flip,
        random_gray_scale=r.grayscale,
        gaussian_blur=0.0,
        normalize={"mean": list(r.mean), "std": list(r.std)},
    )
    images = Images(np.load(job.array), transform)
    loader = torch.utils.data.DataLoader(images, r.batch_size, shuffle=True, drop_last=True)
    model = build(job.method, timm.create_model(r.backbone, num_classes=0, in_chans=len(r.mean)))
    model.train()
    decayed, others = (
        [each for each in group if each.requires_grad]
        for group in get_weight_decay_parameters([model])
    )
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=r.lr, weight_decay=r.weight_decay)
    an_epoch, total = r.lengths(len(images))
    scheduler = CosineWarmupScheduler(optimizer, r.warmup * an_epoch, total, end_value=0.0)
    batches = itertools.chain.from_iterable(loader for _ in range(r.epochs))
    for step, views in enumerate(batches):
        model.update_teacher(cosine_schedule(step, total, r.momentum, 1.0))
        model.loss(views).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model.backbone


if __name__ == "__main__":
    run_jobs(train)
