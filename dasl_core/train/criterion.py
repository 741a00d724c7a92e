"""The training objective: a method's loss and the regularizers on its embeddings."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from dasl_core.distributed import gather, gather_views
from dasl_core.methods import Method, Outputs, Step
from dasl_core.regularizers import REGISTRY, Regularizer, weight_at
from dasl_core.spec import RegularizerConfig
from dasl_core.tensors import full_precision
from dasl_core.train.pseudo_labels import PseudoLabels


class Criterion:
    """Loss terms of a batch by name: ``loss_<method>``, and ``loss_<regularizer>`` for each active one.

    All ranks compute the regularizers on the embeddings of the global batch. So their mean over ranks and,
    with the summed backward of the gather, their gradient equal those of one process.

    Args:
        name: name of the method, for its term.
        regularizers: resolved settings of the active regularizers, by name.
        seed: seed of the regularizers.
        pseudo_labels: labels for regularizers on k-means clusters.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        regularizers: Mapping[str, RegularizerConfig],
        seed: int,
        device: torch.device,
        pseudo_labels: PseudoLabels | None = None,
    ) -> None:
        self.name, self.method, self.pseudo_labels = name, method, pseudo_labels
        self.regularizers: dict[str, Regularizer] = {
            name: REGISTRY[name](settings, seed).to(device)
            for name, settings in regularizers.items()
        }

    @property
    def is_mean(self) -> bool:
        """Whether the terms of a batch are the means over its micro-batches."""
        return self.method.accumulates and not self.regularizers

    def __call__(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Compute the weighted terms; the loss is their sum.

        Args:
            outputs: (V, B, ...) of this rank's share of the batch that `step` describes.
        """
        terms = {f"loss_{self.name}": self.method.loss(outputs, step)}
        if not self.regularizers:
            return terms
        # Before the gather: its backward sums over ranks, which bfloat16 would round.
        embeddings = gather_views(full_precision(outputs["embeddings"]), step.group)  # (V, N, h)
        for name, regularizer in self.regularizers.items():
            settings: RegularizerConfig = regularizer.settings
            assert isinstance(settings.weight, float), "the settings are resolved"
            labels = self._labels(settings, outputs, step)
            weight = weight_at(settings.weight, settings.weight_schedule, step.progress)
            terms[f"loss_{name}"] = weight * regularizer(embeddings, labels, step.index)
        return terms

    def _labels(self, settings: RegularizerConfig, outputs: Outputs, step: Step) -> Tensor:
        """Return labels (N,), on the CPU where chains are drawn except for prototype assignments."""
        if settings.pair_labels == "class":
            assert step.labels is not None, "resolve refuses a data set without classes"
            return step.labels
        if settings.pair_labels == "instance":
            return step.indices
        if self.pseudo_labels is not None:
            return self.pseudo_labels.labels_at(step.indices)
        return gather(outputs["assignments"][0].detach(), step.group).cpu()

    def metrics(self) -> dict[str, Tensor]:
        """Metrics of the last batch in addition to its terms."""
        metrics: dict[str, Tensor] = {}
        for regularizer in self.regularizers.values():
            metrics |= regularizer.metrics()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each regularizer, such as SEC's mean."""
        return {name: dict(module.state_dict()) for name, module in self.regularizers.items()}

    def load_state_dict(self, state: dict[str, Any], changed: Collection[str] = ()) -> None:
        """Restore a `state_dict`, except for regularizers with changed settings."""
        for name, regularizer in self.regularizers.items():
            if regularizer.settings.path().partition(".")[0] not in changed:
                regularizer.load_state_dict(state[name])

    def buffers(self) -> list[Tensor]:
        """Tensors other than weights that a step changes."""
        return [buffer for module in self.regularizers.values() for buffer in module.buffers()]
