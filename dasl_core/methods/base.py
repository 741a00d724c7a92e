"""The one interface of a pretraining method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor, nn

from dasl_core.distributed import rank, world_size
from dasl_core.spec import ResolvedBackbone

Outputs = dict[str, Tensor]
"""What a network gives for a batch: tensors (V, B, ...) of V views of B samples, by name.

``"embeddings"`` (V, B, h), raw, is always among them: the vectors that the loss compares before it
normalizes them. The regularizers act on them. Methods with small local crops list only the global
views there.
"""


@dataclass(frozen=True)
class Step:
    """Where a run is, and what is known of the global batch beside its pixels.

    Attributes:
        index: optimizer steps done before this one.
        total: optimizer steps of the whole run.
        per_epoch: optimizer steps of an epoch.
        indices: (N,) int64 on the CPU, positions in the data set of the global batch's images, in
            rank order.
        labels: (N,) int64 on the CPU, their classes from 0; None without labels.
    """

    index: int
    total: int
    per_epoch: int
    indices: Tensor
    labels: Tensor | None = None

    @property
    def progress(self) -> float:
        """From 0 at the first step to 1 at the last."""
        return self.index / max(1, self.total - 1)

    @property
    def epoch(self) -> int:
        """Epochs done before this one."""
        return self.index // self.per_epoch

    def micro_batch(self, number: int, of: int) -> "Step":
        """The same for one of `of` equal micro-batches of every rank's share."""
        size = len(self.indices) // (world_size() * of)

        def cut(values: Tensor) -> Tensor:
            return values.view(world_size(), of, size)[:, number].flatten()

        labels = None if self.labels is None else cut(self.labels)
        return Step(self.index, self.total, self.per_epoch, cut(self.indices), labels)

    def own(self, values: Tensor) -> Tensor:
        """This rank's share of values of the global batch."""
        return values.chunk(world_size())[rank()]


class Method(nn.Module, ABC):
    """A backbone, its heads and a loss.

    `forward` is the network: what it gives for a sample depends on other samples through batch
    statistics at most, so a batch may be cut into parts. `loss` is the rest: it compares samples,
    over all ranks. DDP wraps `forward`.
    """

    accumulates: ClassVar[bool] = False
    """Whether `loss` is a mean over samples, so that the losses of parts of a batch add up: their mean
    is that of the batch. Otherwise ``train.micro_batches`` costs a second forward."""

    backbone: nn.Module

    @classmethod
    @abstractmethod
    def from_settings(
        cls, settings: Any, backbone: ResolvedBackbone, num_classes: int | None
    ) -> Self:
        """Build the method.

        Args:
            settings: the method's own resolved settings; a subclass names their type.
            num_classes: of the training images; None without labels.
        """

    @abstractmethod
    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """The network's outputs for the views of a batch, or of a part of it.

        No sample is compared with another here; that is `loss`.

        Args:
            views: one batch of images (B, C, H, W) a view, the same samples in each; local crops,
                where the method has them, come last and are smaller.

        Returns:
            Tensors (V, B, ...) by name, V views of the same B samples; V may differ from name to name.
            ``"embeddings"`` (V, B, h) is always among them: the vectors that the loss compares, raw,
            before it normalizes them. DAR and SEC act on them, over all ranks; a method with local
            crops lists only the global views there. A method with `has_prototypes` also gives
            ``"assignments"`` (1, B) int64, the prototype of each sample. Everything that `loss` needs
            of the network must be here: the outputs of parts of a batch (``train.micro_batches``)
            are joined along dimension 1 before `loss` sees them, unless it `accumulates`.
        """

    @abstractmethod
    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """A scalar; its mean over ranks is the loss of the global batch.

        With a gather whose backward sums over ranks, the mean of the ranks' gradients, which DDP
        takes, is then the gradient of one process that holds the global batch.

        Args:
            outputs: of `forward`, for this rank's share of the batch. With `accumulates`, and no
                regularizer beside it, for one of the parts of `train.micro_batches`.
            step: the position in the run, and samples and labels of the global batch, or of the
                same part of every rank's share.
        """

    @property
    def representation(self) -> nn.Module:
        """The backbone that is evaluated and exported: a teacher's, where the method says so."""
        return self.backbone

    def teachers(self) -> list[nn.Module]:
        """Backbones beside `backbone` that a forward runs."""
        return []

    def learning_rates(self) -> dict[str, float]:
        """Factors on the learning rate, by the prefix of the parameters' names."""
        return {}

    def before_update(self, step: Step) -> None:
        """Called with the gradients of the global batch, before they are clipped and applied."""

    def after_update(self, step: Step) -> None:
        """Called once after each optimizer step: moving averages of weights belong here."""

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Scalars to be logged with the loss, on any device; no gradient is needed."""
        return {}


REGISTRY: dict[str, type[Method]] = {}
"""The code of every method, by its name."""

Registered = TypeVar("Registered", bound=type[Method])


def register(name: str) -> Callable[[Registered], Registered]:
    """Register the code of the method whose settings have this `name`."""

    def add(method: Registered) -> Registered:
        REGISTRY[name] = method
        return method

    return add
