"""The training objective: a method's loss and the regularizers on its embeddings."""

from typing import Any

import torch
from torch import Tensor

from dasl_core.distributed import gather, gather_views
from dasl_core.methods import Method, Outputs, Step
from dasl_core.regularizers import (
    DifferenceAlignment,
    SphericalEmbeddingConstraint,
)
from dasl_core.spec import ResolvedDAR, ResolvedSEC
from dasl_core.spec.rivals import Rivals
from dasl_core.tensors import full_precision
from dasl_core.train.pseudo_labels import PseudoLabels
from dasl_core.train.rivals import rival_loss

NO_RIVALS = Rivals()


class Criterion:
    """Loss terms of a batch by name: ``loss_<method>``, ``loss_dar``, ``loss_sec``, ``loss_<rival>``.

    The regularizers act on the embeddings of the global batch and are computed alike on all ranks. So
    their mean over ranks and, with the summed backward of the gather, their gradient equal those of
    one process.

    Args:
        name: of the method, for its term.
        seed: of DAR's chain.
        pseudo_labels: for DAR on clusters of k-means.
        rivals: other regularizers.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        dar: ResolvedDAR | None,
        sec: ResolvedSEC | None,
        seed: int,
        device: torch.device,
        pseudo_labels: PseudoLabels | None = None,
        rivals: Rivals = NO_RIVALS,
    ) -> None:
        self.name, self.method, self.pseudo_labels = name, method, pseudo_labels
        self.seed, self.sec = seed, sec
        self.rivals = rivals.active()
        self.dar = dar if dar is not None and dar.active else None
        # Pairs that DAR took from the last batch: the columns of its matrix.
        self.columns: int | None = None
        self.alignment: DifferenceAlignment | None = None
        if self.dar is not None:
            self.alignment = DifferenceAlignment(
                self.dar.weight,
                schedule=self.dar.schedule,
                norm=self.dar.norm,
                difference=self.dar.difference,
                estimator=self.dar.estimator,
                reduction=self.dar.reduction,
                normalize=self.dar.normalize,
                seed=seed,
            )
        self.constraint: SphericalEmbeddingConstraint | None = None
        if sec is not None and sec.weight > 0:
            self.constraint = SphericalEmbeddingConstraint(sec.target, sec.momentum).to(device)

    @property
    def is_mean(self) -> bool:
        """Whether the terms of a batch are the means of those of its micro-batches."""
        return self.method.accumulates and not self._is_regularized

    @property
    def _is_regularized(self) -> bool:
        return self.dar is not None or self.constraint is not None or bool(self.rivals)

    def __call__(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Compute the weighted terms; the loss is their sum.

        Args:
            outputs: (V, B, ...) of this rank's share of the batch that `step` describes.
        """
        terms = {f"loss_{self.name}": self.method.loss(outputs, step)}
        if not self._is_regularized:
            return terms
        # Before the gather: its backward sums over ranks, which bfloat16 would round.
        embeddings = gather_views(full_precision(outputs["embeddings"]), step.group)  # (V, N, h)
        if self.dar is not None:
            assert self.alignment is not None
            labels = self._labels(self.dar, outputs, step)
            self.columns = self.alignment.num_pairs(labels, len(embeddings))
            terms["loss_dar"] = self.alignment(
                embeddings, labels, step.index, progress=step.progress
            )
        if self.constraint is not None:
            assert self.sec is not None
            weight = self.sec.weight * (step.progress if self.sec.ramp else 1.0)
            terms["loss_sec"] = weight * self.constraint(embeddings.flatten(0, 1))
        for name, rival in self.rivals.items():
            term = rival_loss(rival, embeddings, step, self.seed)
            terms[f"loss_{name}"] = rival.weight * term
        return terms

    def _labels(self, dar: ResolvedDAR, outputs: Outputs, step: Step) -> Tensor:
        """Labels (N,) on the CPU, where the chain is drawn; only prototype assignments come from a GPU."""
        if dar.labels == "class":
            assert step.labels is not None, "resolve refuses a data set without classes"
            return step.labels
        if dar.labels == "instance":
            return step.indices
        if self.pseudo_labels is not None:
            return self.pseudo_labels.of(step.indices)
        return gather(outputs["assignments"][0].detach(), step.group).cpu()

    def metrics(self) -> dict[str, Tensor]:
        """Metrics of the last batch besides its terms: the number of DAR's pairs."""
        return {} if self.columns is None else {"dar_columns": torch.tensor(float(self.columns))}

    def state_dict(self) -> dict[str, Any]:
        """The state that the next step depends on: SEC's mean."""
        return {} if self.constraint is None else dict(self.constraint.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        if self.constraint is not None:
            self.constraint.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        """Tensors other than weights that a step changes."""
        return [] if self.constraint is None else [*self.constraint.buffers()]
