"""Base classes of methods with an EMA teacher."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dasl_core.methods.base import BuildInputs, Method, Outputs, Step
from dasl_core.models.ema import Teacher, cosine_momentum


class EMATeacherMethod(Method):
    """A method whose targets come from a teacher: a moving average of the student, updated every step."""

    teacher: Teacher
    _compared: int | None = None  # index of the step whose update is still to come

    def _expect_update(self, step: Step) -> None:
        """Note that a batch is compared in training; a RuntimeError if the update of an earlier step did not come."""
        if not self.training:
            return
        if self._compared not in (None, step.index):
            raise RuntimeError(
                f"the teacher was not updated after step {self._compared}: call "
                "method.update(optimizer, step) instead of optimizer.step()"
            )
        self._compared = step.index

    def before_update(self, step: Step) -> None:
        self._compared = None

    @property
    @abstractmethod
    def student_head(self) -> nn.Module:
        """The student's head; the teacher has a moving average of it."""

    def after_update(self, step: Step) -> None:
        momentum = self._momentum(step)
        self.teacher.update(self.backbone, self.student_head, momentum=momentum, where=step.updated)

    def teachers(self) -> list[nn.Module]:
        return [self.teacher.backbone]

    @property
    def representation(self) -> nn.Module:
        return self.teacher.backbone if self.settings.keep == "teacher" else self.backbone

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        return {"teacher_momentum": torch.tensor(self._momentum(step))}

    def _momentum(self, step: Step) -> float:
        return cosine_momentum(self.settings.teacher_momentum, step.index, step.total)


class PredictorMethod(EMATeacherMethod):
    """A method whose student predicts the teacher's projections of the other view.

    Subclasses define the output name of the teacher's projections.
    """

    targets: ClassVar[str]

    def __init__(
        self, settings: Any, inputs: BuildInputs, projector: nn.Module, predictor: nn.Module
    ) -> None:
        super().__init__(settings, inputs)
        self.projector, self.predictor = projector, predictor
        self.teacher = Teacher(self.backbone, projector)

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """Compute ``embeddings``, the student's predictions, and the teacher's targets; both (2, B, h)."""
        return {
            "embeddings": self.apply_to_views(self.embed, views),
            self.targets: self.apply_to_views(self.teacher, views),
        }

    @property
    def embedding_head(self) -> nn.Module:
        """Projector and predictor: DAR and SEC act on the predictions."""
        return nn.Sequential(self.projector, self.predictor)

    @property
    def student_head(self) -> nn.Module:
        return self.projector
