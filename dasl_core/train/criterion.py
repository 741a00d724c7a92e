"""The training objective: a method's loss and the regularizers on its embeddings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dasl_core.distributed import gather, gather_views
from dasl_core.methods import Method, Outputs, Step
from dasl_core.regularizers import (
    REGISTRY,
    GradientShare,
    Regularizer,
    gradient_shares,
    weight_at,
)
from dasl_core.spec import DEFAULT_SHARE, RegularizerConfig
from dasl_core.tensors import full_precision
from dasl_core.train.pseudo_labels import PseudoLabels

# A share is measured in the first epoch, or in this number of steps if that is more.
SHARE_STEPS = 100
# Outside, a term of a given weight is reported: it does nothing, or it is the loss.
USUAL_SHARES = (0.02, 0.5)


class Criterion:
    """Loss terms of a batch by name: ``loss_<method>``, and ``loss_<regularizer>`` for each active one.

    All ranks compute the regularizers on the embeddings of the global batch. So their mean over ranks and,
    with the summed backward of the gather, their gradient equal those of one process.

    Args:
        name: name of the method, for its term.
        regularizers: resolved settings of the active regularizers, by name.
        seed: seed of the regularizers.
        pseudo_labels: labels for regularizers on k-means clusters.

    Attributes:
        scale: applied to a loss before its backward in float16 (`GradScaler.scale`); else None.
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
        self.scale: Callable[[Tensor], Tensor] | None = None
        self._share_metrics: dict[str, Tensor] = {}  # of the last batch
        self._checked: set[str] = set()
        self.regularizers: dict[str, Regularizer] = {
            name: REGISTRY[name](settings, seed).to(device)
            for name, settings in regularizers.items()
        }

    @property
    def is_mean(self) -> bool:
        """Whether the terms of a batch are the means over its micro-batches."""
        return self.method.accumulates and not self.regularizers

    def __call__(
        self, outputs: Outputs, step: Step, backbone_outputs: Sequence[Tensor] = ()
    ) -> dict[str, Tensor]:
        """Compute the weighted terms; the loss is their sum.

        Args:
            outputs: (V, B, ...) of this rank's share of the batch that `step` describes.
            backbone_outputs: outputs of the backbone at which gradient shares are measured; none: they are not.
        """
        loss = self.method.loss(outputs, step)
        terms = {f"loss_{self.name}": loss}
        self._share_metrics = {}
        if not self.regularizers:
            return terms
        # Before the gather: its backward sums over ranks, which bfloat16 would round.
        embeddings = gather_views(full_precision(outputs["embeddings"]), step.group)  # (V, N, h)
        unweighted = {}
        for name, regularizer in self.regularizers.items():
            labels = self._labels(regularizer.settings, outputs, step)
            unweighted[name] = regularizer(embeddings, labels, step.index)
        measured: dict[str, GradientShare] = {}
        if backbone_outputs:
            measured = gradient_shares(
                loss, unweighted, backbone_outputs, scale=self.scale, group=step.group
            )
            window = max(step.per_epoch, SHARE_STEPS)
            for name, regularizer in self.regularizers.items():
                regularizer.add_measurement(measured[name], step.index, window)
        for name, regularizer in self.regularizers.items():
            weight = self._weight(regularizer, step)
            terms[f"loss_{name}"] = weight * unweighted[name]
            if isinstance(weight, Tensor):
                self._share_metrics[f"weight_{name}"] = weight
            if name in measured:
                self._share_metrics[f"share_{name}"] = weight * measured[name].share
                self._share_metrics[f"share_cosine_{name}"] = measured[name].cosine
        return terms

    def _weight(self, regularizer: Regularizer, step: Step) -> float | Tensor:
        """Return the weight of a step: that of the settings, or the one with which the term has its share."""
        settings: RegularizerConfig = regularizer.settings
        if isinstance(settings.weight, float):
            return weight_at(settings.weight, settings.weight_schedule, step.progress)
        assert isinstance(settings.share, float), "the settings are resolved"
        ramp = weight_at(1.0, settings.weight_schedule, step.progress)
        return ramp * regularizer.weight_for_share(settings.share)

    def share_measurements(self) -> dict[str, Tensor]:
        """Return for each regularizer what `share_warnings` needs, (4,) float64."""
        return {
            name: torch.cat(
                [torch.stack([each.window_end, each.share_is_checked]), each.gradient_norms]
            )
            for name, each in self.regularizers.items()
        }

    def share_warnings(
        self, step: int, total_steps: int, measurements: Mapping[str, Tensor]
    ) -> list[tuple[str, dict[str, float]]]:
        """Return a message, with its numbers, for each given weight with an unusual share; once for each.

        Args:
            step: index of a step.
            measurements: `share_measurements` after this step, on the host.
        """
        warnings = []
        for name, regularizer in self.regularizers.items():
            settings: RegularizerConfig = regularizer.settings
            end, is_checked, of_loss, of_term = measurements[name].tolist()
            if end < 0 and step == total_steps - 1 and settings.share is not None:
                message = (
                    f"{settings.path()}.share: no step had a finite gradient of both the loss and the term at the "
                    "backbone's outputs, so the term had the weight 0. Give a weight."
                )
                warnings.append((message, {"share": 0.0}))
            if is_checked or name in self._checked or end < 0 or step < min(end, total_steps) - 1:
                continue
            regularizer.share_is_checked.fill_(True)
            self._checked.add(name)  # for measurements of before
            if not isinstance(settings.weight, float) or of_loss == 0:
                continue
            share = settings.weight * of_term / of_loss
            if not USUAL_SHARES[0] <= share <= USUAL_SHARES[1]:
                effect = "hardly changes" if share < USUAL_SHARES[0] else "outweighs"
                message = (
                    f"{settings.path()}.weight: at {settings.weight:g}, its gradient at the backbone's outputs is "
                    f"{100 * share:.3g} % of the loss's, so it {effect} the training. Set "
                    f"{settings.path()}.share: {DEFAULT_SHARE:g} in place of the weight."
                )
                warnings.append((message, {"weight": settings.weight, "share": share}))
        return warnings

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
        metrics = dict(self._share_metrics)
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
