"""DAR as a loss term: weighted, over several views, with its own random numbers."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.default_weights import default_dar_weight
from dasl_core.distributed import gather, gather_views, group_size
from dasl_core.regularizers.dar import Difference, Estimator, difference_alignment
from dasl_core.regularizers.norms import CtvNorm, Reduction
from dasl_core.regularizers.schedule import Schedule, weight_at
from dasl_core.seeds import stream
from dasl_core.tensors import check_choice, full_precision


class DifferenceAlignment(nn.Module):
    """Weighted DAR of the embeddings of several views, with the defaults of jobs.

    It has neither parameters nor state: the random order of a batch is drawn from a stream of the seed
    and the step, so a resumed run draws the same orders.

    Args:
        weight: lambda, at the end of the schedule; ``"auto"``: 0.5 for ``difference="distance"``,
            otherwise 0.003 for ``norm="l1"`` and 0.03 for the other norms.
        schedule: schedule of the weight, see `weight_at`; all but ``"constant"`` need the progress of the run.
        norm, difference, estimator, reduction, normalize: see `difference_alignment`, whose default
        difference is another one.
        seed: seed of the random orders.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """

    def __init__(
        self,
        weight: float | Literal["auto"] = "auto",
        *,
        schedule: Schedule = "constant",
        norm: CtvNorm = "l1",
        difference: Difference = "distance",
        estimator: Estimator = "chain",
        reduction: Reduction = "mean",
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("schedule", schedule, get_args(Schedule))
        check_choice("norm", norm, get_args(CtvNorm))
        check_choice("difference", difference, get_args(Difference))
        check_choice("estimator", estimator, get_args(Estimator))
        check_choice("reduction", reduction, get_args(Reduction))
        if weight == "auto":
            if reduction == "sum":
                raise ValueError(
                    "weight has no default with reduction='sum', where the term grows with the "
                    "square of the batch; give a number"
                )
            weight = default_dar_weight(norm, difference)
        self.weight = weight_at(weight, "constant", 1.0)  # checks it
        self.schedule: Schedule = schedule
        self.norm: CtvNorm = norm
        self.difference: Difference = difference
        self.estimator: Estimator = estimator
        self.reduction: Reduction = reduction
        self.normalize, self.seed = normalize, seed

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        step: int,
        *,
        progress: float | None = None,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        """Compute the weighted term of one batch, a scalar in float32 or float64.

        Args:
            embeddings: (V, B, h) of V views of the same B samples, raw, as the base loss uses them.
            labels: (B,) integer labels of the samples: positions in the data set (cluster-free), clusters or
                classes. The views of a sample share its label, so they are never a pair. Pass them on the CPU,
                so that no step waits for the device.
            step: number of the step, from 0, which determines the random order.
            progress: progress of the run from 0 to 1, for the schedule.
            group: process group that shares the batch equally; None: this process holds all of it. The labels are
            gathered on the device of the embeddings.

        Raises:
            ValueError: an argument is not valid; the message names it.
        """
        if embeddings.dim() != 3:
            raise ValueError(
                "embeddings must have the shape (V, B, h), such as torch.stack of the views; given "
                f"{tuple(embeddings.shape)}"
            )
        if progress is None:
            if self.schedule != "constant":
                raise ValueError(f"progress is needed for the schedule {self.schedule!r}")
            progress = 1.0
        if group_size(group) > 1:
            # In full precision, because bfloat16 would round the sum over ranks in the backward.
            embeddings = gather_views(full_precision(embeddings), group)
            labels = gather(labels.to(embeddings.device), group).cpu()
        alignment = difference_alignment(
            embeddings.flatten(0, 1),
            labels.repeat(len(embeddings)),
            norm=self.norm,
            difference=self.difference,
            estimator=self.estimator,
            reduction=self.reduction,
            normalize=self.normalize,
            generator=stream(self.seed, "dar", step),
        )
        return weight_at(self.weight, self.schedule, progress) * alignment

    def extra_repr(self) -> str:
        names = ("weight", "schedule", "norm", "difference", "estimator", "reduction", "normalize")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
