"""The gradient of a global batch, at once or in micro-batches that fit into memory.

There are three ways; the loss decides between the last two:

* one micro-batch: forward, loss, backward;
* a loss that is a mean over samples: gradient accumulation;
* a loss that compares samples: gradient caching (Gao et al., "Scaling Deep Contrastive
  Learning Batch Size under Memory Limited Setup", RepL4NLP 2021). A first forward without graph
  computes the outputs of all micro-batches, the loss of the whole batch gives their gradients, and a
  second forward of each micro-batch propagates these through the network. Exact, for one more forward.

Batch statistics are computed in micro-batches: with BatchNorm, splitting a batch changes the network. With
LayerNorm all three ways give the same gradient.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dasl_core.methods import Method, Outputs, Step
from dasl_core.models.batchnorm import untracked_statistics
from dasl_core.seeds import random_state, restore_random_state
from dasl_core.train.sharding import ShardedMethod
from dasl_core.train.timing import Activity

Terms = dict[str, Tensor]
LossFunction = Callable[[Outputs, Step, Sequence[Tensor]], Terms]
Inputs = tuple[Sequence[Tensor]] | tuple[Sequence[Tensor], Tensor]
"""Arguments of a method's `forward`: views, and masks if it has any."""


class GradientComputer:
    """Computes the gradients of a global batch.

    Args:
        model: `method`, or DDP or FSDP around it.
        criterion: returns scalar loss terms by name; the mean over ranks of their sum is differentiated. It also takes
            the outputs of the backbone, of a step whose gradient shares are measured.
        micro_batches: number of micro-batches in a rank's share.
        is_mean: whether the criterion of a batch is the mean over its micro-batches.
        autocast: creates the context in which the network runs.
        scale: applied to a loss before its backward (`GradScaler.scale`).
        span: creates a context that measures a forward with its loss, or a backward.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        criterion: LossFunction,
        *,
        micro_batches: int,
        is_mean: bool,
        autocast: Callable[[], AbstractContextManager[None]],
        scale: Callable[[Tensor], Tensor],
        span: Callable[[Activity], AbstractContextManager[None]] = lambda activity: nullcontext(),
    ) -> None:
        self.model, self.method, self.criterion = model, method, criterion
        self.micro_batches, self.is_mean = micro_batches, is_mean
        self.autocast, self.scale, self.span = autocast, scale, span

    @property
    def sharded(self) -> ShardedMethod | None:
        """The method under FSDP; None without."""
        return self.model if isinstance(self.model, ShardedMethod) else None

    def embed(self, images: Tensor) -> Tensor:
        """Compute the raw embeddings (B, h) of images, as `Method.embed`."""
        compute = partial(self.method.embed, images)
        embeddings: Tensor = compute() if self.sharded is None else self.sharded(compute)
        return embeddings

    def _run(self, model: nn.Module, inputs: Inputs) -> Outputs:
        """Run the network, which is `method` or `model`."""
        outputs: Outputs
        if self.sharded is not None:
            outputs = self.sharded(partial(self.method, *inputs))
        else:
            outputs = model(*inputs)
        return outputs

    def backward(
        self,
        views: Sequence[Tensor],
        step: Step,
        masks: Tensor | None = None,
        *,
        measure_shares: bool = False,
    ) -> tuple[Terms, Outputs]:
        """Add the gradients of this rank's share `views`, averaged over ranks by DDP or FSDP.

        Args:
            views: tensors (B, C, H, W).
            masks: (B, ...) from the method's `draw_masks`.
            measure_shares: whether the criterion measures gradient shares; not with micro-batches, whose outputs have
                no graph when their loss is computed.

        Returns:
            The loss terms and the outputs (V, B, ...) of the whole share, detached.
        """
        if self.micro_batches == 1:
            inputs = (views,) if masks is None else (views, masks)
            terms, outputs = self._forward(inputs, step, measure_shares)
            with self.span("backward"):
                torch.autograd.backward(self.scale(total(terms)))
            return detached(terms), detached(outputs)
        micro_batches = self._cut(views, masks)
        return (self._accumulated if self.is_mean else self._cached)(micro_batches, step)

    def _forward(
        self, inputs: Inputs, step: Step, measure_shares: bool = False
    ) -> tuple[Terms, Outputs]:
        self.method.backbone_outputs = [] if measure_shares else None
        with self.span("forward"):
            with self.autocast():
                outputs = self._run(self.model, inputs)
            collected, self.method.backbone_outputs = self.method.backbone_outputs, None
            return self.criterion(outputs, step, collected or ()), outputs

    def _accumulated(self, micro_batches: Sequence[Inputs], step: Step) -> tuple[Terms, Outputs]:
        results: list[tuple[Terms, Outputs]] = []
        for number, micro_batch in enumerate(micro_batches):
            with self._reduced_if(number == self.micro_batches - 1):
                part = step.micro_batch(number, self.micro_batches)
                terms, outputs = self._forward(micro_batch, part)
                with self.span("backward"):
                    torch.autograd.backward(self.scale(total(terms) / self.micro_batches))
            results.append((detached(terms), detached(outputs)))
        mean = {
            name: torch.stack([terms[name] for terms, _ in results]).mean(dim=0)
            for name in results[0][0]
        }
        return mean, _joined([outputs for _, outputs in results])

    def _cached(self, micro_batches: Sequence[Inputs], step: Step) -> tuple[Terms, Outputs]:
        device = micro_batches[0][0][0].device
        states, outputs = [], []
        with self.span("forward"):
            with torch.no_grad(), untracked_statistics(self.method), self.autocast():
                for micro_batch in micro_batches:
                    states.append(random_state(device))
                    outputs.append(self._run(self.method, micro_batch))
            cache = {
                name: value.requires_grad_() if value.is_floating_point() else value
                for name, value in _joined(outputs).items()
            }
            terms = self.criterion(cache, step, ())
        leaves = [value for value in cache.values() if value.requires_grad]
        names = [name for name, value in cache.items() if value.requires_grad]
        # Weights used only by the criterion, such as proxies, already have their gradient.
        weights = [weight for weight in self.method.parameters() if weight.requires_grad]
        with self.span("backward"):
            loss = self.scale(total(terms))
            if self.sharded is not None:
                torch.autograd.backward(loss)  # FSDP averages the gradients of such weights at once
                weights, gradients = [], tuple(leaf.grad for leaf in leaves)
            else:
                gradients = torch.autograd.grad(loss, [*leaves, *weights], allow_unused=True)
        of_outputs = dict(zip(names, gradients[: len(leaves)], strict=True))
        of_weights = zip(weights, gradients[len(leaves) :], strict=True)

        for number, (micro_batch, state) in enumerate(zip(micro_batches, states, strict=True)):
            restore_random_state(state, device)
            last = number == self.micro_batches - 1
            with self._reduced_if(last):
                with self.span("forward"), self.autocast():
                    again = self._run(self.model, micro_batch)
                tensors, slopes = [], []
                for name, value in again.items():
                    slope = of_outputs.get(name)
                    if slope is not None and value.requires_grad:
                        tensors.append(value)
                        chunk = slope.chunk(self.micro_batches, dim=1)[number]
                        slopes.append(chunk.to(value.dtype))
                if last:
                    for weight, slope in of_weights:
                        if slope is not None:
                            # Part of the graph, so that DDP averages it with the other gradients.
                            tensors.append(weight * 1)
                            slopes.append(slope)
                with self.span("backward"):
                    torch.autograd.backward(tensors, slopes)
        return detached(terms), detached(cache)

    def _cut(self, views: Sequence[Tensor], masks: Tensor | None) -> list[Inputs]:
        chunks = [view.chunk(self.micro_batches) for view in views]
        cut_views = [list(micro_batch) for micro_batch in zip(*chunks, strict=True)]
        if masks is None:
            return [(micro_batch,) for micro_batch in cut_views]
        return list(zip(cut_views, masks.chunk(self.micro_batches), strict=True))

    def _reduced_if(self, last: bool) -> AbstractContextManager[None]:
        """DDP averages over ranks once, with the last micro-batch; FSDP with each, as it keeps only shards."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


def total(terms: Terms) -> Tensor:
    """Return the sum of loss terms."""
    return torch.stack(list(terms.values())).sum()


def detached(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detach tensors from their graph."""
    return {name: value.detach() for name, value in values.items()}


def _joined(outputs: list[Outputs]) -> Outputs:
    return {name: torch.cat([output[name] for output in outputs], dim=1) for name in outputs[0]}
