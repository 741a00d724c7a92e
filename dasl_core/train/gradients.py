"""The gradient of a global batch, whole or in parts that fit into memory.

Three ways, chosen by what the loss is:

* one part: forward, loss, backward;
* a loss that is a mean over samples: the losses of the parts add up (gradient accumulation);
* any other, since it compares samples: gradient caching (Gao et al., "Scaling Deep Contrastive
  Learning Batch Size under Memory Limited Setup", RepL4NLP 2021). A first forward without graph gives
  the outputs of all parts, the loss of the whole batch gives their gradients, and a second forward of
  each part takes those through the network. Exact, for one more forward.

In parts, batch statistics are those of a part: with BatchNorm the network itself is another one than
in a single part, as it is wherever a batch is cut. With LayerNorm all three give the same gradient.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dasl_core.methods import Method, Outputs, Step
from dasl_core.models.batchnorm import untracked_statistics
from dasl_core.train.checkpoint import random_state, restore_random_state

Terms = dict[str, Tensor]
Criterion = Callable[[Outputs, Step], Terms]


class GradientComputer:
    """Fills the parameters' gradients with those of a global batch.

    Args:
        model: `method`, or DDP around it.
        criterion: scalar loss terms by name; the mean over ranks of their sum is differentiated.
        parts: into which a rank's share is cut.
        adds_up: whether the criterion of a batch is the mean of those of its parts.
        autocast: makes the context in which the network runs.
        scale: applied to a loss before its backward (`GradScaler.scale`).
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        criterion: Criterion,
        *,
        parts: int,
        adds_up: bool,
        autocast: Callable[[], AbstractContextManager[None]],
        scale: Callable[[Tensor], Tensor],
    ) -> None:
        self.model, self.method, self.criterion = model, method, criterion
        self.parts, self.adds_up, self.autocast, self.scale = parts, adds_up, autocast, scale

    def backward(self, views: Sequence[Tensor], step: Step) -> tuple[Terms, Outputs]:
        """Add the gradients of this rank's share `views`, averaged over ranks by DDP.

        Returns:
            The loss terms and the outputs (V, B, ...) of the whole share, without their graph.
        """
        if self.parts == 1:
            return self._whole(views, step)
        return self._accumulated(views, step) if self.adds_up else self._cached(views, step)

    def _whole(self, views: Sequence[Tensor], step: Step) -> tuple[Terms, Outputs]:
        with self.autocast():
            outputs: Outputs = self.model(views)
        terms = self.criterion(outputs, step)
        torch.autograd.backward(self.scale(total(terms)))
        return detached(terms), detached(outputs)

    def _accumulated(self, views: Sequence[Tensor], step: Step) -> tuple[Terms, Outputs]:
        found: list[tuple[Terms, Outputs]] = []
        for number, part in enumerate(self._cut(views)):
            with self._reduced_if(number == self.parts - 1):
                with self.autocast():
                    outputs: Outputs = self.model(part)
                terms = self.criterion(outputs, step.part(number, self.parts))
                torch.autograd.backward(self.scale(total(terms) / self.parts))
            found.append((detached(terms), detached(outputs)))
        mean = {
            name: torch.stack([terms[name] for terms, _ in found]).mean(dim=0)
            for name in found[0][0]
        }
        return mean, _joined([outputs for _, outputs in found])

    def _cached(self, views: Sequence[Tensor], step: Step) -> tuple[Terms, Outputs]:
        device = views[0].device
        parts, states, outputs = self._cut(views), [], []
        with torch.no_grad(), untracked_statistics(self.method), self.autocast():
            for part in parts:
                states.append(random_state(device))
                outputs.append(self.method(part))
        cache = {
            name: value.requires_grad_() if value.is_floating_point() else value
            for name, value in _joined(outputs).items()
        }
        terms = self.criterion(cache, step)
        leaves = [value for value in cache.values() if value.requires_grad]
        # Weights that only the criterion uses, such as proxies, have their gradient already.
        weights = [weight for weight in self.method.parameters() if weight.requires_grad]
        gradients = torch.autograd.grad(
            self.scale(total(terms)), [*leaves, *weights], allow_unused=True
        )
        names = [name for name, value in cache.items() if value.requires_grad]
        of_outputs = dict(zip(names, gradients[: len(leaves)], strict=True))
        of_weights = zip(weights, gradients[len(leaves) :], strict=True)

        for number, (part, state) in enumerate(zip(parts, states, strict=True)):
            restore_random_state(state, device)
            last = number == self.parts - 1
            with self._reduced_if(last):
                with self.autocast():
                    again: Outputs = self.model(part)
                tensors, slopes = [], []
                for name, value in again.items():
                    slope = of_outputs.get(name)
                    if slope is not None and value.requires_grad:
                        tensors.append(value)
                        slopes.append(slope.chunk(self.parts, dim=1)[number].to(value.dtype))
                if last:
                    for weight, slope in of_weights:
                        if slope is not None:
                            # Through the graph, so that DDP averages it with all others.
                            tensors.append(weight * 1)
                            slopes.append(slope)
                torch.autograd.backward(tensors, slopes)
        return detached(terms), detached(cache)

    def _cut(self, views: Sequence[Tensor]) -> list[list[Tensor]]:
        return [
            list(part) for part in zip(*(view.chunk(self.parts) for view in views), strict=True)
        ]

    def _reduced_if(self, last: bool) -> AbstractContextManager[None]:
        """DDP averages over ranks once, with the last part."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


def total(terms: Terms) -> Tensor:
    """The sum of loss terms."""
    return torch.stack(list(terms.values())).sum()


def detached(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same values without their graph."""
    return {name: value.detach() for name, value in values.items()}


def _joined(outputs: list[Outputs]) -> Outputs:
    return {name: torch.cat([each[name] for each in outputs], dim=1) for name in outputs[0]}
