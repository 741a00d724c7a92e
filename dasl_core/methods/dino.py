"""DINO (Caron et al., ICCV 2021)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.distributed import mean_over_ranks
from dasl_core.methods.base import BuildInputs, Outputs, Step, by_size
from dasl_core.methods.ema_teacher import EMATeacherMethod
from dasl_core.models.ema import Teacher
from dasl_core.models.heads import DINOHead
from dasl_core.spec.methods.dino import ResolvedDINO
from dasl_core.spec.methods.ibot import ResolvedIBOT
from dasl_core.tensors import check_crops, check_temperature, check_whole_number, full_precision

GLOBAL_VIEWS = 2


class TemperatureWarmup(NamedTuple):
    """The teacher's temperature: linear from `start` in the first epoch to `end` in epoch `epochs`."""

    start: float
    end: float
    epochs: int

    def __call__(self, epoch: int) -> float:
        """The temperature of an epoch, counted from 0."""
        if epoch >= self.epochs:
            return self.end
        return self.start + (self.end - self.start) * epoch / max(1, self.epochs - 1)


PAPER_WARMUP = TemperatureWarmup(start=0.04, end=0.07, epochs=30)


def temperature_warmup(settings: ResolvedDINO | ResolvedIBOT) -> TemperatureWarmup:
    """Return the teacher's temperatures of resolved settings."""
    return TemperatureWarmup(
        settings.teacher_temperature_start,
        settings.teacher_temperature,
        settings.teacher_temperature_epochs,
    )


class DINO(EMATeacherMethod, name="dino"):
    """DINO: from all crops of an image the student predicts the teacher's outputs for the global crops.

    Centering and sharpening of the teacher's outputs prevent a collapse.
    """

    settings: ResolvedDINO
    accumulates = True
    center: Tensor

    def __init__(self, settings: ResolvedDINO, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        self.head = DINOHead(
            inputs.features,
            settings.hidden_dim,
            settings.bottleneck_dim,
            settings.out_dim,
            batch_norm=settings.head_batch_norm,
            norm_last_layer=settings.norm_last_layer,
        )
        self.teacher = Teacher(self.backbone, self.head)
        self.teacher_temperature = temperature_warmup(settings)
        self.register_buffer("center", torch.zeros(settings.out_dim))
        # Per micro-batch of this step: mean teacher output, mean target, entropy of the targets.
        self._target_statistics: list[tuple[Tensor, Tensor, Tensor]] = []
        self._metrics: dict[str, Tensor] = {}

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """Compute the outputs of student and teacher.

        ``embeddings``: the student's bottleneck for the global views, (2, B, h); ``student``: its
        outputs for all views, (V, B, K); ``teacher``: the teacher's for the global views, (2, B, K).
        """
        features = torch.cat([self.collected(self.backbone(crops)) for crops in by_size(views)])
        embeddings = self.embedding_head(features)
        outputs = self.head.outputs(embeddings)
        targets = self.teacher(torch.cat(list(views[:GLOBAL_VIEWS])))
        return {
            "embeddings": torch.unflatten(embeddings, 0, (len(views), -1))[:GLOBAL_VIEWS],
            "student": torch.unflatten(outputs, 0, (len(views), -1)),
            "teacher": torch.unflatten(targets, 0, (GLOBAL_VIEWS, -1)),
        }

    @property
    def embedding_head(self) -> nn.Module:
        """The student's head up to the bottleneck."""
        return self.head.mlp

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Compute the loss; in training mode, collect the teacher's outputs for the center."""
        teacher = full_precision(outputs["teacher"])
        targets = dino_targets(teacher, self.center, self.teacher_temperature(step.epoch))
        self._expect_update(step)
        if self.training:
            entropy = torch.special.entr(targets).sum(dim=-1).mean()
            self._target_statistics.append(
                (teacher.mean(dim=(0, 1)), targets.mean(dim=(0, 1)), entropy)
            )
        return dino_loss(targets, outputs["student"], self.settings.student_temperature)

    def chance_loss(self, batch_size: int) -> float:
        return math.log(len(self.center))

    @torch.no_grad()
    def before_update(self, step: Step) -> None:
        super().before_update(step)
        # The center is updated only after the whole batch was compared with the old one. A skipped
        # step restores it, like all buffers.
        statistics = zip(*self._target_statistics, strict=True)
        outputs, usage, entropy = (torch.stack(values).mean(dim=0) for values in statistics)
        self._target_statistics.clear()
        outputs, usage = mean_over_ranks(torch.stack([outputs, usage]), step.group)
        self.center.lerp_(outputs, 1 - self.settings.center_momentum)
        self._metrics = {
            "output_entropy": entropy,
            "output_usage": torch.special.entr(usage).sum(),
        }
        if step.epoch < self.settings.freeze_last_layer_epochs:
            for weight in self.head.last_layer.parameters():
                weight.grad = None

    @property
    def student_head(self) -> nn.Module:
        return self.head

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Entropy of the targets and usage of the outputs, in nats.

        ``output_entropy``, of an image's target: near ln(num_outputs), all outputs are alike.
        ``output_usage``, of the batch's mean target: near 0, all images are alike.
        """
        settings = {
            "num_outputs": torch.tensor(len(self.center)),
            "teacher_temperature": torch.tensor(self.teacher_temperature(step.epoch)),
        }
        return super().metrics(outputs, step) | self._metrics | settings


class DINOLoss(nn.Module):
    """DINO's loss with a center of its own, for a training loop without the method `DINO`.

    The head should be `dasl_core.models.heads.DINOHead`, and the teacher a
    `dasl_core.models.ema.Teacher`. The center is a buffer, and so part of the state_dict.

    Args:
        out_dim: K, the number of outputs.
        student_temperature: divides the student's outputs.
        teacher_temperature: of an epoch.
        center_momentum: of the center, a moving average of the teacher's mean output.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """

    center: Tensor

    def __init__(
        self,
        out_dim: int,
        *,
        student_temperature: float = 0.1,
        teacher_temperature: TemperatureWarmup = PAPER_WARMUP,
        center_momentum: float = 0.9,
    ) -> None:
        super().__init__()
        check_whole_number(out_dim, "out_dim")
        check_temperature(student_temperature)
        if not 0 <= center_momentum < 1:
            raise ValueError(
                f"center_momentum must be at least 0 and below 1; given {center_momentum}"
            )
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(out_dim))

    def forward(
        self, student: Tensor, teacher: Tensor, epoch: int = 0, group: ProcessGroup | None = None
    ) -> Tensor:
        """Compute the loss; in training mode, update the center afterwards, for the next batch.

        Args:
            student: (V, B, K), the student's outputs, the global views first.
            teacher: (T, B, K), the teacher's outputs for the T global views; they get no gradient.
            epoch: from 0, for the teacher's temperature.
            group: process group over which the batch is shared, whose mean output moves the center;
                None: this process holds all of it.

        Raises:
            ValueError: a shape differs from these.
        """
        outputs = full_precision(teacher.detach())
        targets = dino_targets(outputs, self.center, self.teacher_temperature(epoch))
        loss = dino_loss(targets, student, self.student_temperature)
        if self.training:
            mean = mean_over_ranks(outputs.mean(dim=(0, 1)), group)
            self.center.lerp_(mean.to(self.center.dtype), 1 - self.center_momentum)
        return loss


@torch.no_grad()
def dino_targets(outputs: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Compute the teacher's distributions (T, B, K): centered and sharpened outputs (T, B, K)."""
    return F.softmax((outputs - center) / temperature, dim=-1)


def dino_loss(targets: Tensor, outputs: Tensor, temperature: float) -> Tensor:
    """Compute DINO's loss: cross-entropy between the teacher's and the student's distributions.

    It compares different views of the same image, and is the mean over samples and pairs of views
    (Caron et al. 2021, eq. 3 and algorithm 1).

    Args:
        targets: (T, B, K), the teacher's distributions; they get no gradient.
        outputs: (V, B, K), the student's outputs for the same views and additional ones; float16 and
            bfloat16 are computed in float32.
        temperature: divides the student's outputs.

    Raises:
        ValueError: a shape differs from these, or there is no pair of different views.
    """
    check_crops("targets", targets, "outputs", outputs)
    check_temperature(temperature)
    with torch.autocast(outputs.device.type, enabled=False):
        log_probabilities = F.log_softmax(full_precision(outputs) / temperature, dim=-1)
        # By image first: as one product over images and outputs, millions of terms would be one GPU block's.
        pairs = torch.einsum("tbk,vbk->btv", targets.detach(), log_probabilities).sum(dim=0)
        compared = pairs.numel() - len(targets)  # a view is not compared with itself
        return -pairs.fill_diagonal_(0).sum() / (compared * outputs.shape[1])
