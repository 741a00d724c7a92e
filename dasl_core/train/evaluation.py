"""Evaluation of encoders on the held-out images of a run."""

from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.data.image_set import ImageSet, spacing
from dasl_core.data.split import labeled
from dasl_core.distributed import all_ranks, rank, world_size
from dasl_core.evaluate import (
    alignment,
    clustering_metrics,
    dimension_std,
    effective_rank,
    fine_tune,
    instance_hits,
    inter_class_distances,
    knn_hits,
    linear_probe,
    mean_norm,
    recall_hits,
    uniformity,
    verification,
)
from dasl_core.headlines import (
    HEALTH_LIMIT,
    INSTANCE_RECALL,
    LINEAR_LABELS,
    RECALL,
    VERIFICATION,
)
from dasl_core.methods import Method
from dasl_core.spec import FineTune, KMeans, LinearProbe, ResolvedEvaluate
from dasl_core.train.features import Encoder, ImageEncoder, eval_mode
from dasl_core.train.precision import autocast_dtype

DISTANCES = ("mean", "std", "q05", "q50", "q95", "max", "max_difference", "log_factor")
# Largest image size for comparing raw pixels: at 224 each image has 150,528 values and a bank takes tens of
# gigabytes, without a better baseline (blur helps it).
RAW_SIDE = 32
# Maximum number of training images in the k-NN bank of raw pixels, evenly spaced: 600 MB. All of ImageNet would
# take 14 GB before the first step.
RAW_BANK_LIMIT = 50_000
# Areas of the linear probe's random crops, the same in all published protocols.
PROBE_CROPS = (0.08, 1.0)
# Maximum number of training images searched for the plots' neighbors, without a k-NN bank.
SEARCHED_LIMIT = 10_000


class FeatureObserver(Protocol):
    """Receives the features of an evaluation. All ranks make the same calls."""

    def features(self, held_out: Tensor, bank: Tensor, positions: np.ndarray) -> None:
        """Observe the features of a network.

        Args:
            held_out: (N, d) features of all held-out images.
            bank: (n, d) features of this rank's part of the training images.
            positions: (n,) positions of this part among the training images.
        """

    def embeddings(self, phi: Tensor, labels: Tensor | None) -> None:
        """Observe the loss's raw embeddings (N, h) of at most `HEALTH_LIMIT` held-out images."""


class Evaluator:
    """Evaluates encoders on the held-out images of one run. All ranks must make the same calls.

    Attributes:
        hits: whether each image is right, by accuracy, in the newest evaluation of features.
    """

    hits: dict[str, Tensor]

    def __init__(
        self,
        settings: ResolvedEvaluate,
        encoder: ImageEncoder,
        train: ImageSet,
        held_out: ImageSet,
    ) -> None:
        """Create an evaluator; no image is read yet. A ValueError if the gallery has all images, or none."""
        self.settings, self.encoder, self.train = settings, encoder, train
        limit = settings.knn.bank if settings.knn is not None else None
        self.bank_every = 1 if limit is None else spacing(len(train), limit)
        self.held_out = held_out
        names, train_names = held_out.class_names(), train.class_names()
        self.labels: Tensor | None = None
        self.train_labels: Tensor | None = None
        if names is not None:
            class_names = sorted(set(names) | set(train_names or []))
            numbers = {name: i for i, name in enumerate(class_names)}
            self.labels = torch.tensor([numbers[name] for name in names])
            # A classifier can predict only classes of training images, so none if whole classes are held out.
            # Images of a single missing class count as wrong.
            if train_names is not None and not set(names).isdisjoint(train_names):
                self.train_labels = torch.tensor([numbers[name] for name in train_names])
        self.hits = {}
        self.in_gallery = None if settings.gallery is None else _gallery(settings.gallery, held_out)

    def backbone(
        self, backbone: nn.Module, *, final: bool = False, observer: FeatureObserver | None = None
    ) -> dict[str, float]:
        """Compute all metrics of a network from images to features (B, d), in eval mode.

        Args:
            backbone: a method's backbone, a teacher's, or one with its head.
            final: also run the linear probe and fine-tuning if the spec enables them.
            observer: receives the features.
        """
        metrics = self.frozen(backbone, final=final, observer=observer)
        if final and self.labels is not None and self.train_labels is not None:
            metrics |= self._fine_tune(backbone, self.train_labels, self.labels)
        return metrics

    def frozen(
        self, network: nn.Module, *, final: bool = False, observer: FeatureObserver | None = None
    ) -> dict[str, float]:
        """Compute all metrics of a network without fine-tuning it; see `backbone`."""
        with eval_mode(network):
            metrics = self._metrics(network, self.bank_every, health=True, observer=observer)
            if final and self.labels is not None and self.train_labels is not None:
                metrics |= self._linear(network, self.train_labels, self.labels)
        return metrics

    def phi_distances(
        self, method: Method, *, observer: FeatureObserver | None = None
    ) -> dict[str, float]:
        """Compute the quantities of DAR's theorems: distances of the loss's embeddings phi."""
        every = spacing(len(self.held_out), HEALTH_LIMIT)
        with eval_mode(method):
            phi = self.encoder.features(method.embed, self.held_out.every(every))
        distances = self._distances(phi)
        if observer is not None:
            observer.embeddings(phi, None if self.labels is None else self.labels[::every])
        return {f"phi_{name}": value for name, value in distances.items()}

    @property
    def trains_at_end(self) -> bool:
        """Whether the final evaluation trains a probe or the network."""
        settings = self.settings
        trains = bool(settings.linear) or bool(settings.finetune)
        return trains and self.labels is not None and self.train_labels is not None

    @property
    def searched_every(self) -> int:
        """Stride of the training images searched for the plots' neighbors; that of the k-NN bank, if any."""
        if self.settings.knn is not None and self.train_labels is not None:
            return self.bank_every
        return max(self.bank_every, spacing(len(self.train), SEARCHED_LIMIT))

    def raw_pixels(self) -> dict[str, float]:
        """Compute the accuracies of raw pixels, a baseline."""
        side = min(self.encoder.image_size, RAW_SIDE)
        return self._metrics(
            # Averaged, because subsampling turns fine patterns into noise.
            lambda images: F.adaptive_avg_pool2d(images, side).flatten(1),
            max(self.bank_every, spacing(len(self.train), RAW_BANK_LIMIT)),
            health=False,
        )

    def chance(self) -> dict[str, float]:
        """Return the expected accuracy of a random neighbor, by metric."""
        count = len(self.held_out)
        levels = {INSTANCE_RECALL: 1 / len(self.held_out.every(spacing(count, HEALTH_LIMIT)))}
        if self.labels is None:
            return levels
        levels[VERIFICATION] = 0.5
        classes = int(self.labels.max()) + 1
        if self.train_labels is not None:
            classes = max(classes, int(self.train_labels.max()) + 1)
            shares = torch.bincount(self.train_labels, minlength=classes) / len(self.train_labels)
            levels["knn_top1"] = float(shares[self.labels].mean())
        if count > 1 and self.in_gallery is None:
            others = torch.bincount(self.labels, minlength=classes)[self.labels] - 1
            levels["recall_at_1"] = float((others / (count - 1)).mean())
        return levels

    def _metrics(
        self,
        encode: Encoder,
        bank_every: int,
        *,
        health: bool,
        observer: FeatureObserver | None = None,
    ) -> dict[str, float]:
        """Compute the metrics of an encoder, with every n-th training image in the k-NN bank."""
        settings = self.settings
        held_out = self.encoder.on_device(self.encoder.features(encode, self.held_out))
        metrics: dict[str, float] = {}
        self.hits = hits = {}
        votes = settings.knn is not None and self.train_labels is not None
        bank, positions = None, np.arange(0)
        if votes or observer is not None:
            if not votes:
                bank_every = self.searched_every
            bank, positions = self._bank(encode, bank_every, held_out.shape[1])
        if self.labels is not None:
            if bank is not None and settings.knn is not None and self.train_labels is not None:
                right = knn_hits(
                    bank,
                    self.train_labels[torch.from_numpy(positions)],
                    held_out,
                    self.labels,
                    settings.knn.numbers,
                    settings.knn.temperature,
                    on_block=self.encoder.check,
                    group=all_ranks(),
                )
                hits["knn_top1"] = right[0]
                first, *others = settings.knn.numbers
                metrics |= {
                    "knn_top1": _share(right[0]),
                    **{
                        f"knn_top1_k{k}": _share(row)
                        for k, row in zip(others, right[1:], strict=True)
                    },
                    "knn_k": float(first),
                    "knn_temperature": settings.knn.temperature,
                    "knn_bank": float(len(self.train.every(bank_every))),
                }
            if settings.retrieval and len(held_out) > 1:
                found = self._retrieval(held_out, self.labels)
                for k, right in zip(settings.retrieval, found.T, strict=True):
                    hits[f"{RECALL}{k}"] = right
                    metrics[f"{RECALL}{k}"] = _share(right)
            if isinstance(settings.clustering, KMeans):
                restarts = settings.clustering.restarts
                metrics |= clustering_metrics(
                    held_out, self.labels, restarts=restarts, on_start=self.encoder.check
                )
            if settings.verification is not None:
                metrics |= verification(held_out, self.labels, pairs=settings.verification)
        if observer is not None and bank is not None:
            observer.features(held_out, bank, positions)
        return metrics | self._label_free_metrics(encode, held_out, health=health)

    def _bank(self, encode: Encoder, every: int, width: int) -> tuple[Tensor, np.ndarray]:
        """Compute this rank's features of every n-th training image; return them and their positions."""
        images = self.train.every(every)
        share = -(-len(images) // world_size())
        mine = slice(rank() * share, (rank() + 1) * share)
        features = self.encoder.local_features(encode, images, mine, width)
        return self.encoder.on_device(features), np.arange(0, len(self.train), every)[mine]

    def _retrieval(self, x: Tensor, y: Tensor) -> Tensor:
        if self.in_gallery is None:
            return recall_hits(x, y, self.settings.retrieval)
        inside, outside = self.in_gallery, ~self.in_gallery
        gallery = (x[inside.to(x.device)], y[inside])
        queries = x[outside.to(x.device)]
        return recall_hits(queries, y[outside], self.settings.retrieval, gallery=gallery)

    def _label_free_metrics(
        self, encode: Encoder, features: Tensor, *, health: bool
    ) -> dict[str, float]:
        """Compute the metrics that need no labels: view retrieval and, with `health`, collapse."""
        every = spacing(len(self.held_out), HEALTH_LIMIT)
        subset = self.held_out.every(every)
        first = self.encoder.features(encode, subset, 0)
        metrics: dict[str, float] = {}
        if health:
            second = self.encoder.features(encode, subset, 1)
            metrics = {"alignment": alignment(first, second), "mean_norm": mean_norm(features)}
        features = features[::every]
        if len(features) > 1:
            self.hits[INSTANCE_RECALL] = instance_hits(first, features)
            metrics[INSTANCE_RECALL] = _share(self.hits[INSTANCE_RECALL])
        if health and len(features) > 1:
            metrics |= {
                "effective_rank": effective_rank(features),
                "dimension_std": dimension_std(features),
                "uniformity": uniformity(features),
            }
        return (metrics | self._distances(features)) if health else metrics

    def _distances(self, features: Tensor) -> dict[str, float]:
        """Compute statistics of the distances of at most `HEALTH_LIMIT` held-out images, evenly spaced."""
        if len(features) < 2:
            return {}
        metrics: dict[str, float] = {}
        labels = {"distance": torch.arange(len(features))}
        if self.labels is not None:
            y = self.labels[:: spacing(len(self.held_out), HEALTH_LIMIT)]
            if torch.unique(y).numel() > 1:
                labels["class_distance"] = y
        for kind, y in labels.items():
            distances = inter_class_distances(features, y)
            metrics |= {f"{kind}_{name}": distances[name] for name in DISTANCES}
        return metrics

    def _linear(self, encode: Encoder, train_y: Tensor, y: Tensor) -> dict[str, float]:
        """Train and test a linear probe on all training images, and on shares of their labels."""
        settings = self.settings.linear
        if not isinstance(settings, LinearProbe):
            return {}
        train_x = self.encoder.features(encode, self.train)
        test_x = self.encoder.features(encode, self.held_out)
        crops = self.encoder.crops.model_copy(update={"crop_scale": PROBE_CROPS})
        metrics: dict[str, float] = {}
        for share in (1.0, *settings.labels):
            images, x, labels = self.train, train_x, train_y
            if share < 1:
                chosen = labeled(self.train.index, self.train.indices, share)
                images = ImageSet(self.train.canvases, self.train.indices[chosen])
                x, labels = (each[torch.from_numpy(chosen)] for each in (train_x, train_y))
            result = linear_probe(
                self.encoder.on_device(x),
                labels,
                test_x,
                y,
                learning_rates=settings.learning_rates,
                epochs=settings.epochs,
                batch_size=settings.batch_size,
                seed=self.encoder.seed,
                device=self.encoder.device,
                on_epoch=self.encoder.check,
                views=None
                if settings.views == "whole"
                else partial(self.encoder.features, encode, images, augment=crops),
            )
            if share == 1:
                metrics = {
                    "linear_top1": result.top1,
                    "linear_top5": result.top5,
                    "linear_lr": result.learning_rate,
                    **{
                        f"linear_top1_lr_{rate.learning_rate:g}": rate.top1 for rate in result.rates
                    },
                }
            else:
                metrics[f"{LINEAR_LABELS}{share:g}"] = result.top1
        return metrics

    def _fine_tune(self, backbone: nn.Module, train_y: Tensor, y: Tensor) -> dict[str, float]:
        """Fine-tune and test a copy of the network on all training images."""
        settings = self.settings.finetune
        if not isinstance(settings, FineTune):
            return {}
        result = fine_tune(
            backbone,
            self.encoder.reader(self.train),
            train_y,
            self.encoder.reader(self.held_out),
            y,
            epochs=settings.epochs,
            lr=settings.lr,
            batch_size=settings.batch_size,
            seed=self.encoder.seed,
            precision=autocast_dtype(self.encoder.precision),
            group=all_ranks(),
        )
        return {"finetune_top1": result.top1, "finetune_top5": result.top5}


def _share(right: Tensor) -> float:
    return right.double().mean().item()


def _gallery(name: str, held_out: ImageSet) -> Tensor:
    """Whether each held-out image is in the gallery, the others being queries; a ValueError if all are, or none is."""
    inside = held_out.in_folder(name)
    if inside.all() or not inside.any():
        raise ValueError(
            f"evaluate.gallery: {'all' if inside.all() else 'none'} of the {len(held_out)} held-out "
            f"images lie in a folder {name!r} inside their class folder, as in CLASS/{name}/FILE; "
            "queries lie outside of it"
        )
    return torch.from_numpy(inside)
