"""What is measured on held-out images while a run goes on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dasl_core.data.augment import ViewParameters, central_view, draw_view, render
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Canvases
from dasl_core.distributed import gather, rank, world_size
from dasl_core.evaluate import (
    alignment,
    dimension_std,
    effective_rank,
    inter_class_distances,
    knn_accuracy,
    mean_norm,
    recall_at_k,
    uniformity,
)
from dasl_core.seeds import stream
from dasl_core.spec import JobSpec

# Neighbours are looked for among at most so many training images, evenly spaced: the bank's
# features are computed anew at every evaluation, which must stay cheap beside the training.
BANK_LIMIT = 50_000
# Health figures, whose cost grows with the square or worse, use at most so many held-out images.
HEALTH_LIMIT = 4_096
FEATURE_BATCH = 256
# Raw pixels are compared at most at this many a side: at 224 each image would be 150,528 numbers,
# and a bank of them some tens of gigabytes, for a baseline that is no better (blur helps it).
RAW_SIDE = 32

Encoder = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImageSet:
    """Images to evaluate on or with: positions in an index, read as canvases."""

    canvases: Canvases
    samples: np.ndarray

    @property
    def index(self) -> DatasetIndex:
        return self.canvases.index

    def class_names(self) -> list[str] | None:
        """A name for each sample, or None without labels."""
        labels = self.index.labels
        if labels is None:
            return None
        return [self.index.class_names[labels[sample]] for sample in self.samples]


class Evaluator:
    """Evaluates encoders on the held-out images of one run. All ranks must call it alike."""

    def __init__(
        self,
        spec: JobSpec,
        train: ImageSet,
        held_out: ImageSet,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.spec, self.device, self.dtype = spec, device, dtype
        assert isinstance(spec.backbone.image_size, int), "resolve the spec first"
        self.image_size = spec.backbone.image_size
        spacing = -(-len(train.samples) // BANK_LIMIT)
        self.bank = ImageSet(train.canvases, train.samples[::spacing])
        self.held_out = held_out
        names = held_out.class_names()
        bank_names = self.bank.class_names()
        self.labels: Tensor | None = None
        self.bank_labels: Tensor | None = None
        if names is not None:
            numbers = {name: i for i, name in enumerate(sorted(set(names) | set(bank_names or [])))}
            self.labels = torch.tensor([numbers[name] for name in names])
            # Neighbours can name a class only if it is in the bank: no k-NN when whole classes are
            # held out. A single class that happens to be missing there counts as wrong.
            if bank_names is not None and not set(names).isdisjoint(bank_names):
                self.bank_labels = torch.tensor([numbers[name] for name in bank_names])

    def backbone(self, backbone: nn.Module) -> dict[str, float]:
        """All metrics of a network, in eval mode; its mode is put back."""
        was_training = backbone.training
        backbone.eval()
        try:
            return self._metrics(backbone, health=True)
        finally:
            backbone.train(was_training)

    def raw_pixels(self) -> dict[str, float]:
        """The metrics with labels, of the pixels themselves: what any training must beat."""
        size = self.image_size
        self.image_size = min(size, RAW_SIDE)
        try:
            return self._metrics(lambda images: images.flatten(1), health=False)
        finally:
            self.image_size = size

    def features(self, encode: Encoder, images: ImageSet, view: int | None = None) -> Tensor:
        """(N, d) float32 features on the CPU, computed by all ranks together, the same on all.

        `view` is the number of a random view; None is the central square.
        """
        share = -(-len(images.samples) // world_size())
        # Equal shares, so that gather fits; what repeats at the end is cut off below.
        padded = np.resize(images.samples, share * world_size())
        mine = padded[rank() * share : (rank() + 1) * share]
        parts = []
        for start in range(0, share, FEATURE_BATCH):
            canvases, extents = images.canvases.read(mine[start : start + FEATURE_BATCH])
            parameters = central_view(extents)
            if view is not None:
                generator = stream(self.spec.train.seed, "evaluate", view, rank(), start)
                parameters = draw_view(extents, self.spec.augment, generator)
            # Pixels keep their precision: only the network runs under autocast, as in training.
            rendered = self._render(canvases, extents, parameters)
            with torch.no_grad(), autocast(self.spec, self.device):
                parts.append(encode(rendered).float())
        return gather(torch.cat(parts))[: len(images.samples)].cpu()

    def _render(self, canvases: Tensor, extents: Tensor, view: ViewParameters) -> Tensor:
        view = view.to(self.device, self.dtype)
        return render(canvases.to(self.device), extents, view, self.image_size, self.dtype)

    def _metrics(self, encode: Encoder, *, health: bool) -> dict[str, float]:
        settings = self.spec.evaluate
        held_out = self.features(encode, self.held_out)
        metrics: dict[str, float] = {}
        if self.labels is not None:
            if settings.knn is not None and self.bank_labels is not None:
                metrics["knn_top1"] = knn_accuracy(
                    self.features(encode, self.bank),
                    self.bank_labels,
                    held_out,
                    self.labels,
                    k=settings.knn.k,
                    temperature=settings.knn.temperature,
                )
            if settings.retrieval and len(held_out) > 1:
                recalls = recall_at_k(held_out, self.labels, settings.retrieval)
                metrics |= {f"recall_at_{k}": value for k, value in recalls.items()}
        if health:
            metrics |= self._health(encode, held_out)
        return metrics

    def _health(self, encode: Encoder, features: Tensor) -> dict[str, float]:
        """Figures that need no labels: is the representation spread, or is it collapsing?"""
        few = ImageSet(self.held_out.canvases, self.held_out.samples[:HEALTH_LIMIT])
        first, second = (self.features(encode, few, view) for view in range(2))
        metrics = {"alignment": alignment(first, second), "mean_norm": mean_norm(features)}
        features = features[:HEALTH_LIMIT]
        if len(features) > 1:
            distances = inter_class_distances(features, torch.arange(len(features)))
            metrics |= {
                "effective_rank": effective_rank(features),
                "dimension_std": dimension_std(features),
                "uniformity": uniformity(features),
                "distance_mean": distances["mean"],
                "distance_std": distances["std"],
                "distance_max": distances["max"],
            }
        return metrics


def autocast(spec: JobSpec, device: torch.device) -> torch.autocast:
    """The mixed-precision context of a resolved spec; does nothing for fp32 and fp64."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=spec.train.precision == "bf16")
