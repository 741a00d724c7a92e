"""What methods with a teacher have in common."""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from dasl_core.methods.base import Method, Outputs, Step
from dasl_core.models.ema import Teacher, cosine_momentum


class TaughtMethod(Method):
    """A method whose targets come from a teacher that follows the student once per optimizer step.

    Attributes:
        momentum: of the teacher at the first step; it grows to 1 in a half cosine.
        keep: whose backbone is evaluated and exported.
    """

    teacher: Teacher
    momentum: float
    keep: Literal["student", "teacher"]

    @property
    @abstractmethod
    def taught_head(self) -> nn.Module:
        """The student's head that the teacher has a copy of."""

    def after_update(self, step: Step) -> None:
        self.teacher.follow(self.backbone, self.taught_head, momentum=self._momentum(step))

    def teachers(self) -> list[nn.Module]:
        return [self.teacher.backbone]

    @property
    def representation(self) -> nn.Module:
        return self.teacher.backbone if self.keep == "teacher" else self.backbone

    def figures(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        return {"teacher_momentum": torch.tensor(self._momentum(step))}

    def _momentum(self, step: Step) -> float:
        return cosine_momentum(self.momentum, step.index, step.total)
