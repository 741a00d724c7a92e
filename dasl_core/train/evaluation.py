"""What is measured on held-out images while a run goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.data.augment import ViewParameters, central_view, draw_view, render
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Canvases
from dasl_core.distributed import gather, rank, world_size
from dasl_core.evaluate import (
    alignment,
    clustering_metrics,
    dimension_std,
    effective_rank,
    fine_tune,
    inter_class_distances,
    knn_accuracy,
    linear_probe,
    mean_norm,
    recall_at_k,
    uniformity,
)
from dasl_core.evaluate.finetune import Reader, own_share
from dasl_core.seeds import stream
from dasl_core.spec import FineTune, LinearProbe, ResolvedJobSpec

# Neighbours are looked for among at most so many training images, evenly spaced: the bank's
# features are computed anew at every evaluation, which must stay cheap beside the training.
BANK_LIMIT = 50_000
# Health figures, whose cost grows with the square or worse, use at most so many held-out images,
# evenly spaced: in the order of the index, the first ones would be of the first few classes.
HEALTH_LIMIT = 4_096
# What is reported of the distances of DAR's theorems.
DISTANCES = ("mean", "std", "q05", "q50", "q95", "max", "max_difference", "log_factor")
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

    def at_most(self, limit: int) -> "ImageSet":
        """Evenly spaced ones of these images."""
        return ImageSet(self.canvases, self.samples[:: spacing(len(self.samples), limit)])

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
        spec: ResolvedJobSpec,
        train: ImageSet,
        held_out: ImageSet,
        device: torch.device,
        dtype: torch.dtype,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_work` is called every now and then while something is computed."""
        self.spec, self.device, self.dtype = spec, device, dtype
        self.on_work = on_work
        self.image_size = spec.backbone.image_size
        self.train = train
        self.bank = train.at_most(BANK_LIMIT)
        self.held_out = held_out
        names, train_names = held_out.class_names(), train.class_names()
        self.labels: Tensor | None = None
        self.train_labels: Tensor | None = None
        self.bank_labels: Tensor | None = None
        if names is not None:
            known = sorted(set(names) | set(train_names or []))
            numbers = {name: i for i, name in enumerate(known)}
            self.labels = torch.tensor([numbers[name] for name in names])
            # A classifier can name a class only if it was shown one: none of them when whole classes
            # are held out. A single class that happens to be missing counts as wrong.
            if train_names is not None and not set(names).isdisjoint(train_names):
                self.train_labels = torch.tensor([numbers[name] for name in train_names])
                self.bank_labels = self.train_labels[:: spacing(len(train_names), BANK_LIMIT)]

    def backbone(self, backbone: nn.Module, *, final: bool = False) -> dict[str, float]:
        """All metrics of a network from images to features (B, d), in eval mode; its mode is put back.

        Args:
            backbone: any such network: a method's backbone, a teacher's, one with its head.
            final: the linear probe and fine-tuning, too, if the spec asks for them.
        """
        with eval_mode(backbone):
            metrics = self._metrics(backbone, health=True)
            if final and self.labels is not None and self.train_labels is not None:
                metrics |= self._linear(backbone, self.train_labels, self.labels)
        if final and self.labels is not None and self.train_labels is not None:
            metrics |= self._fine_tune(backbone, self.train_labels, self.labels)
        return metrics

    @property
    def trains_at_end(self) -> bool:
        """Whether the final evaluation trains a probe, or the network."""
        settings = self.spec.evaluate
        asked = bool(settings.linear) or bool(settings.finetune)
        return asked and self.labels is not None and self.train_labels is not None

    def raw_pixels(self) -> dict[str, float]:
        """The metrics with labels, of the pixels themselves: what any training must beat."""
        side = min(self.image_size, RAW_SIDE)
        return self._metrics(
            # Averaged, not picked: fine patterns would otherwise turn into noise.
            lambda images: F.adaptive_avg_pool2d(images, side).flatten(1),
            health=False,
        )

    def features(self, encode: Encoder, images: ImageSet, view: int | None = None) -> Tensor:
        """(N, d) float32 features on the CPU, computed by all ranks together, the same on all.

        `view` is the number of a random view; None is the central square.
        """
        ranks, count = world_size(), len(images.samples)
        share = -(-count // ranks)
        # Equal shares, so that gather fits; what repeats at the end is cut off below.
        padded = np.resize(np.arange(count), share * ranks)
        mine = padded[rank() * share : (rank() + 1) * share]
        found: Tensor | None = None
        for start in range(0, share, FEATURE_BATCH):
            self.on_work()
            positions = mine[start : start + FEATURE_BATCH]
            canvases, extents = images.canvases.read(images.samples[positions])
            parameters = central_view(extents)
            if view is not None:
                # Drawn for all and picked: views do not depend on the number of ranks.
                everyones = torch.ones(count, 2, dtype=extents.dtype)
                everyones[positions] = extents
                generator = stream(self.spec.train.seed, "evaluate", view)
                drawn = draw_view(everyones, self.spec.augment.of_view(0), generator)
                parameters = drawn.rows(torch.from_numpy(positions))
            # Pixels keep their precision: only the network runs under autocast, as in training.
            rendered = self._render(canvases, extents, parameters)
            with torch.no_grad(), autocast(self.spec, self.device):
                features = encode(rendered).float()
            # Batch by batch to the CPU: those of a large set need not fit beside the training.
            gathered = gather(features).view(ranks, len(features), -1)
            if found is None:
                found = torch.empty(ranks, share, gathered.shape[2])
            found[:, start : start + len(features)] = gathered.cpu()
        assert found is not None, "a set of images to evaluate is never empty"
        return found.flatten(0, 1)[:count]

    def _render(self, canvases: Tensor, extents: Tensor, view: ViewParameters) -> Tensor:
        view = view.to(self.device, self.dtype)
        return render(canvases.to(self.device), extents, view, self.image_size, self.dtype)

    def _metrics(self, encode: Encoder, *, health: bool) -> dict[str, float]:
        settings = self.spec.evaluate
        held_out = self._placed(self.features(encode, self.held_out))
        metrics: dict[str, float] = {}
        if self.labels is not None:
            if settings.knn is not None and self.bank_labels is not None:
                metrics["knn_top1"] = knn_accuracy(
                    self._placed(self.features(encode, self.bank)),
                    self.bank_labels,
                    held_out,
                    self.labels,
                    k=settings.knn.k,
                    temperature=settings.knn.temperature,
                )
                metrics |= {
                    "knn_k": float(settings.knn.k),
                    "knn_temperature": settings.knn.temperature,
                }
            if settings.retrieval and len(held_out) > 1:
                recalls = recall_at_k(held_out, self.labels, settings.retrieval)
                metrics |= {f"recall_at_{k}": value for k, value in recalls.items()}
            if settings.clustering:
                metrics |= clustering_metrics(held_out, self.labels)
        if health:
            metrics |= self._health(encode, held_out)
        return metrics

    def _health(self, encode: Encoder, features: Tensor) -> dict[str, float]:
        """Figures that need no labels: is the representation spread, or is it collapsing?"""
        few = self.held_out.at_most(HEALTH_LIMIT)
        first, second = (self.features(encode, few, view) for view in range(2))
        metrics = {"alignment": alignment(first, second), "mean_norm": mean_norm(features)}
        every = spacing(len(features), HEALTH_LIMIT)
        features = features[::every]
        if len(features) > 1:
            metrics |= {
                "effective_rank": effective_rank(features),
                "dimension_std": dimension_std(features),
                "uniformity": uniformity(features),
            }
            labels = {"distance": torch.arange(len(features))}
            if self.labels is not None and torch.unique(self.labels[::every]).numel() > 1:
                labels["class_distance"] = self.labels[::every]
            for kind, y in labels.items():
                distances = inter_class_distances(features, y)
                metrics |= {f"{kind}_{name}": distances[name] for name in DISTANCES}
        return metrics

    def _linear(self, encode: Encoder, train_y: Tensor, y: Tensor) -> dict[str, float]:
        """The linear probe on all training images."""
        settings = self.spec.evaluate.linear
        if not isinstance(settings, LinearProbe):
            return {}
        result = linear_probe(
            self._placed(self.features(encode, self.train)),
            train_y,
            self.features(encode, self.held_out),
            y,
            learning_rates=settings.learning_rates,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=self.spec.train.seed,
            device=self.device,
            on_epoch=self.on_work,
        )
        return {
            "linear_top1": result.top1,
            "linear_top5": result.top5,
            "linear_lr": result.learning_rate,
            **{f"linear_top1_lr_{rate.learning_rate:g}": rate.top1 for rate in result.rates},
        }

    def _fine_tune(self, backbone: nn.Module, train_y: Tensor, y: Tensor) -> dict[str, float]:
        """Fine-tuning of a copy on all training images."""
        settings = self.spec.evaluate.finetune
        if not isinstance(settings, FineTune):
            return {}
        result = fine_tune(
            backbone,
            self._reader(self.train),
            train_y,
            self._reader(self.held_out),
            y,
            epochs=settings.epochs,
            lr=settings.lr,
            batch_size=settings.batch_size,
            seed=self.spec.train.seed,
            precision=autocast_dtype(self.spec),
        )
        return {"finetune_top1": result.top1, "finetune_top5": result.top5}

    def _reader(self, images: ImageSet) -> Reader:
        """Random crops and flips, as the spec draws them, for training; central views for testing."""
        augment = self.spec.augment.of_view(0).model_copy(
            update={"jitter_probability": 0.0, "grayscale": 0.0, "blur": 0.0, "solarize": 0.0}
        )

        def read(positions: Tensor, step: int | None) -> Tensor:
            self.on_work()
            mine = own_share(positions)
            canvases, extents = images.canvases.read(images.samples[mine.numpy()])
            if step is None:
                return self._render(canvases, extents, central_view(extents))
            # Drawn for the global batch and cut: views do not depend on the number of ranks.
            first = rank() * len(mine)
            everyones = torch.ones(len(positions), 2, dtype=extents.dtype)
            everyones[first : first + len(mine)] = extents
            generator = stream(self.spec.train.seed, "fine-tune views", step)
            view = draw_view(everyones, augment, generator).rows(slice(first, first + len(mine)))
            return self._render(canvases, extents, view)

        return read

    def _placed(self, features: Tensor) -> Tensor:
        """Where they are measured: on the GPU, if they take at most half of what is free there."""
        if self.device.type != "cuda":
            return features
        free, _ = torch.cuda.mem_get_info(self.device)
        return features.to(self.device) if features.nbytes < free / 2 else features


def spacing(count: int, limit: int) -> int:
    """The step at which at most `limit` of `count` things are evenly taken."""
    return -(-count // limit)


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[nn.Module]:
    """The network with all of its modules in eval mode; then each in the mode it had."""
    modes = {module: module.training for module in network.modules()}
    try:
        yield network.eval()
    finally:
        for module, training in modes.items():
            module.training = training


def autocast(spec: ResolvedJobSpec, device: torch.device) -> torch.autocast:
    """The mixed-precision context of a resolved spec; does nothing for fp32 and fp64."""
    dtype = autocast_dtype(spec)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def autocast_dtype(spec: ResolvedJobSpec) -> torch.dtype | None:
    """In which a resolved spec runs the network; None: as it is."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.train.precision)
