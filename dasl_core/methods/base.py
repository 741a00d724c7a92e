"""The interface of a pretraining method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.distributed import group_size
from dasl_core.models.backbone import feature_width
from dasl_core.spec import ResolvedBackbone

Outputs = dict[str, Tensor]
"""The network's outputs for a batch: tensors (V, B, ...) of V views of B samples, by name: see `Method.forward`."""


@dataclass(frozen=True)
class Step:
    """The position of a run, and the indices and labels of the global batch.

    Attributes:
        index: optimizer steps done before this one.
        total: optimizer steps of the whole run.
        per_epoch: optimizer steps of an epoch.
        indices: (N,) int64 on the CPU, positions in the data set of the global batch's images, in
            rank order.
        labels: (N,) int64 on the CPU, their classes from 0; None without labels.
        group: process group whose ranks share the global batch; None: this process holds all of it.
        updated: () bool on the device, for `Method.after_update`: whether the optimizer has changed the
            weights, which the host does not know yet; None: it has.
    """

    index: int
    total: int
    per_epoch: int
    indices: Tensor
    labels: Tensor | None = None
    group: ProcessGroup | None = None
    updated: Tensor | None = None

    @property
    def progress(self) -> float:
        """Progress of the run, from 0 at the first step to 1 at the last."""
        return self.index / max(1, self.total - 1)

    @property
    def epoch(self) -> int:
        """Epochs done before this one."""
        return self.index // self.per_epoch

    def micro_batch(self, number: int, of: int) -> "Step":
        """The same step for one of `of` equal micro-batches of every rank's share."""
        ranks = group_size(self.group)
        size = len(self.indices) // (ranks * of)

        def cut(values: Tensor) -> Tensor:
            return values.view(ranks, of, size)[:, number].flatten()

        labels = None if self.labels is None else cut(self.labels)
        return replace(self, indices=cut(self.indices), labels=labels)


@dataclass(frozen=True)
class BuildInputs:
    """What a method is built from, besides its settings.

    Attributes:
        network: from images (B, C, H, W) to features (B, F); the method trains it in place.
        backbone: settings of the network.
        num_classes: of the training images; None without labels.
    """

    network: nn.Module
    backbone: ResolvedBackbone
    num_classes: int | None = None

    @property
    def features(self) -> int:
        """Width of the network's features."""
        return feature_width(self.network)


REGISTRY: dict[str, type["Method"]] = {}
"""The class of every method, by name."""


class Method(nn.Module, ABC):
    """A backbone, its heads and a loss, built from the method's resolved settings.

    `forward` is the network: its output for a sample depends on other samples only through batch
    statistics, so a batch may be cut into micro-batches. `loss` compares samples over all ranks.
    DDP wraps `forward`.
    """

    accumulates: ClassVar[bool] = False
    """Whether `loss` is a mean over samples, so that the mean over micro-batches is the loss of the
    batch. Otherwise ``train.micro_batches`` costs a second forward."""

    settings: Any
    """The resolved settings; a subclass names their type."""
    backbone: nn.Module
    separate_views: bool = False
    """Whether two views of the same size go through the networks one after the other."""
    batch_norm_is_frozen: bool = False
    """Whether batch normalization of the backbone keeps its statistics."""
    backbone_outputs: list[Tensor] | None = None
    """Where `forward` collects the outputs of the backbone that carry a gradient; None: nowhere."""
    _frozen: tuple[nn.Parameter, ...] | None = None
    """Weights that learn again when the backbone is thawed; None if it is not frozen."""

    def __init_subclass__(cls, name: str | None = None) -> None:
        """Register the class of the method whose settings have this `name`."""
        if name is not None:
            REGISTRY[name] = cls

    def __init__(self, settings: Any, inputs: BuildInputs) -> None:
        super().__init__()
        self.settings, self.backbone = settings, inputs.network

    @abstractmethod
    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """Compute the network's outputs for the views of a batch or a micro-batch.

        Samples are not compared here; `loss` does that.

        Args:
            views: one batch of images (B, C, H, W) per view, the same samples in each. Local crops,
                if the method has them, come last and are smaller. A method whose `draw_masks` returns
                masks takes them as a second argument.

        Returns:
            Tensors (V, B, ...) by name, V views of the same B samples; V may differ from name to name.
            ``"embeddings"`` (V, B, h) is always present: the raw vectors, which the loss compares
            after normalizing them. DAR and SEC act on them, over all ranks; with local crops they
            hold only the global views. A method with `has_prototypes` also returns
            ``"assignments"`` (1, B) int64, the prototype of each sample. Everything that `loss` needs
            of the network must be here: the outputs of micro-batches (``train.micro_batches``) are
            concatenated along dimension 1 before `loss` is called, unless the method `accumulates`.
        """

    def draw_masks(self, image_seeds: Sequence[int]) -> Tensor | None:
        """Draw the masks (B, ...) of a training step, on the CPU; None for a method without masks.

        How many patches are masked is then known without a wait for the device. `forward` copies with
        `dasl_core.tensors.to_device` what the network needs.

        Args:
            image_seeds: one seed for each of the B images of this rank's share, so that the result does
                not depend on the number of ranks.
        """
        return None

    @abstractmethod
    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        """Compute this rank's scalar loss; its mean over ranks is the loss of the global batch.

        With a gather whose backward sums over ranks, the mean of the ranks' gradients, which DDP
        takes, is then the gradient of one process that holds the global batch.

        Args:
            outputs: of `forward`, for this rank's share of the batch. With `accumulates`, and no
                regularizer added, for one of the micro-batches of `train.micro_batches`.
            step: the position in the run, and samples and labels of the global batch, or of the
                same micro-batch of every rank's share.
        """

    def chance_loss(self, batch_size: int) -> float | None:
        """Return the loss of a global batch if all candidates or outputs are alike; None if it is not known."""
        return None

    @property
    @abstractmethod
    def embedding_head(self) -> nn.Module:
        """The layers from the features of `backbone` to the embeddings that the loss compares."""

    def embed(self, images: Tensor) -> Tensor:
        """Compute the raw embeddings (B, h) of images (B, C, H, W): phi in the papers of DAR and SEC.

        They are those of `forward`, without its other outputs. In eval mode, an image's embedding does
        not depend on the other images.
        """
        embeddings: Tensor = self.embedding_head(self.collected(self.backbone(images)))
        return embeddings

    def collected(self, output: Tensor) -> Tensor:
        """Return an output of the backbone, and add it to `backbone_outputs`; `forward` calls this for each."""
        if self.backbone_outputs is not None and output.requires_grad:
            self.backbone_outputs.append(output)
        return output

    @property
    def representation(self) -> nn.Module:
        """The backbone that is evaluated and exported: a teacher's, if the method specifies it."""
        return self.backbone

    def teachers(self) -> list[nn.Module]:
        """Other backbones that a forward runs, such as an EMA teacher's."""
        return []

    def apply_to_views(
        self, network: Callable[[Tensor], Tensor], views: Sequence[Tensor]
    ) -> Tensor:
        """Compute a network's outputs (V, B, ...) for V views of the same size (B, C, H, W).

        Views that are not separate share one pass, and the statistics of batch normalization.
        """
        if self.separate_views:
            return torch.stack([network(view) for view in views])
        return torch.unflatten(network(torch.cat(list(views))), 0, (len(views), -1))

    @property
    def backbone_is_frozen(self) -> bool:
        """Whether only the heads learn."""
        return self._frozen is not None

    def freeze_backbone(self) -> None:
        """Keep the backbone, and a teacher's, in eval mode and without gradients, until `thaw_backbone`."""
        self._frozen = tuple(w for w in self.backbone.parameters() if w.requires_grad)
        for weight in self._frozen:
            weight.requires_grad_(False)
        self.train(self.training)

    def thaw_backbone(self) -> None:
        """Let the weights learn that learned before `freeze_backbone`."""
        for weight in self._frozen or ():
            weight.requires_grad_(True)
        self._frozen = None
        self.train(self.training)

    def freeze_batch_norm(self, *, affine: bool) -> None:
        """Keep the statistics of batch normalization in the backbone, and in a teacher's.

        Args:
            affine: keep its weights and biases, too.

        Raises:
            ValueError: the backbone has no batch normalization.
        """
        layers = [each for each in self.backbone.modules() if isinstance(each, _BatchNorm)]
        if not layers:
            raise ValueError(
                "backbone.freeze_batch_norm has no effect: the backbone has no batch normalization"
            )
        if affine:
            for layer in layers:
                layer.requires_grad_(False)
        self.batch_norm_is_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of all parts but those that are frozen."""
        super().train(mode)
        for network in (self.backbone, *self.teachers()):
            for layer in network.modules():
                is_frozen = self.batch_norm_is_frozen and isinstance(layer, _BatchNorm)
                if is_frozen or self.backbone_is_frozen:
                    layer.training = False
        return self

    def unit_layers(self) -> list[nn.Module]:
        """Layers whose weights stay unit vectors, which cut-initialization leaves as they are."""
        return []

    def learning_rates(self) -> dict[str, float]:
        """Factors on the learning rate, by prefix of the parameter names."""
        return {}

    def restored_buffers(self) -> list[Tensor]:
        """Buffers that a skipped step must restore: those that a forward, `loss` or `before_update` changes."""
        return list(self.buffers())

    def before_update(self, step: Step) -> None:
        """Hook with the gradients of the global batch, before they are clipped and applied."""

    def after_update(self, step: Step) -> None:
        """Hook after each optimizer step, for moving averages of weights.

        Where `step.updated` is false, it must change nothing.
        """

    def update(self, optimizer: torch.optim.Optimizer, step: Step) -> None:
        """Apply the gradients of a global batch with both hooks, and remove them.

        For a training loop of one's own: call this instead of ``optimizer.step()``, which would leave
        teachers, centers and prototypes behind. It neither clips nor scales.
        """
        self.before_update(step)
        optimizer.step()
        self.after_update(step)
        optimizer.zero_grad(set_to_none=True)

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Scalars to log with the loss, on any device and without gradient."""
        return {}


def by_size(views: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield consecutive views of one size, such as all global crops, together, for one pass of the network."""
    return (torch.cat(list(same)) for _, same in groupby(views, key=lambda view: view.shape[2:]))
