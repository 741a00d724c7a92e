"""SwAV (Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
NeurIPS 2020)."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.distributed import all_reduce_sum, gather_views, group_rank, group_size
from dasl_core.methods.base import BuildInputs, Method, Outputs, Step, by_size
from dasl_core.models.heads import projection_head
from dasl_core.spec.methods.swav import ResolvedSwAV
from dasl_core.tensors import check_crops, check_temperature, full_precision

GLOBAL_VIEWS = 2


class SwAV(Method, name="swav"):
    """SwAV: predict the prototypes of a global view from all other views of its image.

    The prototypes of a global view, its *codes*, are computed so that the images of the global batch,
    with those of a queue if the batch is small, share all prototypes evenly.
    """

    settings: ResolvedSwAV
    queue: Tensor
    """(2, Q, h) normalized projections of the newest Q images of all ranks, newest first, by global
    view; the same on all ranks."""

    def __init__(self, settings: ResolvedSwAV, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        width = settings.projection_dim
        self.projector = projection_head(inputs.features, settings.hidden_dim, width)
        self.prototypes = nn.Linear(width, settings.prototypes, bias=False)
        self.register_buffer("queue", torch.zeros(GLOBAL_VIEWS, settings.queue_length, width))
        # Images in the queue, at most: those of skipped steps count. None: not known since a state was loaded.
        self._queued: int | None = None
        self._queue_is_full = False
        self.register_load_state_dict_post_hook(SwAV._forget_queued)  # type: ignore[no-untyped-call]
        self._normalize_prototypes()

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """Compute the ``"embeddings"`` of the two global views, the scores and the assignments.

        ``"scores"`` (V, B, K): the cosine of each view's projection with each prototype.
        ``"assignments"`` (1, B) int64: the prototype nearest to an image's global views.
        """
        # As in the paper's code: one pass of the backbone for each size, one of the head for all.
        features = [self.collected(self.backbone(crops)) for crops in by_size(views)]
        projections = self.projector(torch.cat(features)).unflatten(0, (len(views), -1))
        # Half precision rounds cosines by 0.004, which epsilon amplifies to 8 percent of a code.
        with torch.autocast(projections.device.type, enabled=False):
            scores = self.prototypes(F.normalize(full_precision(projections), dim=-1))
        assignments = scores[:GLOBAL_VIEWS].detach().sum(dim=0).argmax(dim=-1)
        return {
            "embeddings": projections[:GLOBAL_VIEWS],
            "scores": scores,
            "assignments": assignments.unsqueeze(0),
        }

    @property
    def embedding_head(self) -> nn.Module:
        return self.projector

    def unit_layers(self) -> list[nn.Module]:
        return [self.prototypes]

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        scores = outputs["scores"]
        candidates = scores[:GLOBAL_VIEWS].detach()
        if self._queue_is_used(step):
            # Sinkhorn sums over all ranks, so each rank adds a part of the queue.
            share = self.queue.tensor_split(group_size(step.group), dim=1)[group_rank(step.group)]
            with torch.no_grad():
                candidates = torch.cat([candidates, self.prototypes(share)], dim=1)
        codes = sinkhorn(
            candidates, self.settings.epsilon, self.settings.sinkhorn_iterations, step.group
        )
        self._enqueue(outputs["embeddings"].detach(), step.group)
        return swapped_prediction(scores, codes[:, : scores.shape[1]], self.settings.temperature)

    def chance_loss(self, batch_size: int) -> float:
        return math.log(self.prototypes.out_features)

    def before_update(self, step: Step) -> None:
        if step.epoch < self.settings.freeze_prototypes_epochs:
            self.prototypes.weight.grad = None

    def after_update(self, step: Step) -> None:
        self._normalize_prototypes(step.updated)

    @torch.no_grad()
    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Entropies, in nats, of the predictions from global views.

        ``output_entropy``: of each prediction. ``output_usage``: of their mean over the global batch,
        which is ln K if all of the ``num_outputs`` prototypes are used evenly, and 0 if only one is.
        """
        predictions = F.softmax(
            outputs["scores"][:GLOBAL_VIEWS] / self.settings.temperature, dim=-1
        )
        mean = all_reduce_sum(predictions.mean(dim=(0, 1)), step.group) / group_size(step.group)
        return {
            "output_entropy": torch.special.entr(predictions).sum(dim=-1).mean(),
            "output_usage": torch.special.entr(mean).sum(),
            "num_outputs": torch.tensor(float(self.prototypes.out_features)),
        }

    def _queue_is_used(self, step: Step) -> bool:
        if self.queue.shape[1] == 0 or step.epoch < self.settings.queue_start_epoch:
            return False
        # Reading the queue waits for the device, so it is read only where enough steps may have filled it. It
        # must be read then: a step that the device has skipped fills nothing.
        if not self._queue_is_full and self._count_queued() >= self.queue.shape[1]:
            self._queue_is_full = bool(self.queue[:, -1].any())
        return self._queue_is_full

    def _count_queued(self) -> int:
        if self._queued is None:
            self._queued = int(self.queue.any(dim=2).any(dim=0).sum())
        return self._queued

    def _forget_queued(self, keys: object) -> None:
        """Forget what is known of a queue that was replaced."""
        self._queued, self._queue_is_full = None, False

    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, group: ProcessGroup | None) -> None:
        """Insert the global batch of raw embeddings (2, B, h) at the queue's front, and drop the oldest entries."""
        length = self.queue.shape[1]
        if length:
            newest = gather_views(F.normalize(full_precision(embeddings), dim=-1), group)
            self._queued = min(length, self._count_queued() + newest.shape[1])
            self.queue.copy_(torch.cat([newest, self.queue], dim=1)[:, :length])

    @torch.no_grad()
    def _normalize_prototypes(self, where: Tensor | None = None) -> None:
        """Normalize the prototypes for the next forward, at the start and after updates, unless () `where` is false."""
        weight = self.prototypes.weight
        normalized = F.normalize(weight, dim=1)
        weight.copy_(normalized if where is None else torch.where(where, normalized, weight))


@torch.no_grad()
def sinkhorn(
    scores: Tensor, epsilon: float, iterations: int, group: ProcessGroup | None = None
) -> Tensor:
    """Compute codes: smooth, evenly shared assignments to prototypes (Caron et al. 2020, eq. 3 to 5).

    The sums over samples run over the ranks of `group`, whose numbers of samples may differ. The paper's overall
    normalization and its factors 1/K and 1/B are constants, which cancel in the last step, where each
    sample is normalized to a sum of 1.

    Args:
        scores: (..., B, K) float32 or float64, at most 1: cosines.
        epsilon: of the entropy; at 0.03 or more, the smallest exponential is a float32 above 0.
        iterations: of normalizing over samples, then over prototypes.
        group: process group over which the batch is shared; None: this process holds all of it.

    Returns:
        (..., B, K), not negative, with a sum of 1 over prototypes.

    Raises:
        ValueError: `epsilon` or `iterations` is invalid.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0; given {epsilon}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1; given {iterations}")
    codes = torch.exp((scores - 1) / epsilon)
    for _ in range(iterations):
        codes = codes / all_reduce_sum(codes.sum(dim=-2, keepdim=True), group)
        codes = codes / codes.sum(dim=-1, keepdim=True)
    return codes


def swapped_prediction(scores: Tensor, codes: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy of each global view's codes and the predictions of all other views.

    It is the mean over pairs of views and over this rank's samples (Caron et al. 2020, eq. 2 and 6).

    Args:
        scores: (V, B, K), the global views first.
        codes: (G, B, K) of the G global views.
        temperature: divides the scores.

    Raises:
        ValueError: a shape differs from these, or `temperature` is not above 0.
    """
    check_crops("codes", codes, "scores", scores)
    check_temperature(temperature)
    logs = F.log_softmax(scores / temperature, dim=-1)
    others = logs.sum(dim=0) - logs[: len(codes)]
    return -(codes * others).sum(dim=-1).mean() / (len(scores) - 1)
