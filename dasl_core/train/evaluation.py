"""Evaluation of encoders on the held-out images of a run."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.data.image_set import ImageSet, spacing
from dasl_core.data.views import ViewParameters, central_view, draw_view, render
from dasl_core.distributed import all_ranks, gather, rank, rank_share, world_size
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
from dasl_core.evaluate.finetune import Reader, Request
from dasl_core.methods import Method
from dasl_core.seeds import derive_seed
from dasl_core.spec import (
    FineTune,
    KMeans,
    LinearProbe,
    Normalization,
    ResolvedEvaluate,
    ViewAugment,
)
from dasl_core.train.precision import Precision, autocast, autocast_dtype, weight_dtype
from dasl_core.train.read_ahead import FeatureTable, canvases_ahead

# Maximum of held-out images for health metrics, whose cost is quadratic or worse. Evenly spaced, since
# the first ones of the index belong to the first few classes.
HEALTH_LIMIT = 4_096
# Statistics that are reported of distances between images.
DISTANCES = ("mean", "std", "q05", "q50", "q95", "max", "max_difference", "log_factor")
FEATURE_BATCH = 256
# Raw pixels are compared at this side length at most: at 224 each image has 150,528 numbers, and a
# bank of them tens of gigabytes, without a better baseline (blur helps it).
RAW_SIDE = 32
# Maximum of training images in the k-NN bank of raw pixels, evenly spaced: 600 MB. Those of ImageNet would take
# 14 GB, before the first step, for a baseline.
RAW_BANK_LIMIT = 50_000

Encoder = Callable[[Tensor], Tensor]


class Evaluator:
    """Evaluates encoders on the held-out images of one run. All ranks must make the same calls."""

    def __init__(
        self,
        settings: ResolvedEvaluate,
        augment: ViewAugment,
        train: ImageSet,
        held_out: ImageSet,
        *,
        image_size: int,
        normalization: Normalization,
        precision: Precision,
        seed: int,
        device: torch.device,
        keepalive: Callable[[], object] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an evaluator. No image is read yet.

        Args:
            augment: of the random views for alignment and fine-tuning.
            keepalive: called repeatedly during long computations that differ between ranks.
            check: called repeatedly during all others, by all ranks together; may raise to end them.

        Raises:
            ValueError: `settings.gallery` leaves no query or no gallery.
        """
        self.settings, self.augment, self.seed = settings, augment, seed
        self.precision, self.dtype = precision, weight_dtype(precision)
        self.device = device
        self.keepalive, self.check = keepalive, check
        self.image_size, self.normalization = image_size, normalization
        self.train = train
        limit = settings.knn.bank if settings.knn is not None else None
        self.bank_every = 1 if limit is None else spacing(len(train), limit)
        self.held_out = held_out
        names, train_names = held_out.class_names(), train.class_names()
        self.labels: Tensor | None = None
        self.train_labels: Tensor | None = None
        if names is not None:
            known = sorted(set(names) | set(train_names or []))
            numbers = {name: i for i, name in enumerate(known)}
            self.labels = torch.tensor([numbers[name] for name in names])
            # A classifier can predict only classes of the training images: none of them when whole
            # classes are held out. Images of a single missing class count as wrong.
            if train_names is not None and not set(names).isdisjoint(train_names):
                self.train_labels = torch.tensor([numbers[name] for name in train_names])
        self.in_gallery = None if settings.gallery is None else _gallery(settings.gallery, held_out)

    def backbone(self, backbone: nn.Module, *, final: bool = False) -> dict[str, float]:
        """Compute all metrics of a network from images to features (B, d), in eval mode.

        Args:
            backbone: any such network: a method's backbone, a teacher's, one with its head.
            final: run the linear probe and fine-tuning, too, if the spec enables them.
        """
        metrics = self.frozen(backbone, final=final)
        if final and self.labels is not None and self.train_labels is not None:
            metrics |= self._fine_tune(backbone, self.train_labels, self.labels)
        return metrics

    def frozen(self, network: nn.Module, *, final: bool = False) -> dict[str, float]:
        """Compute all metrics of a network except those of fine-tuning it; see `backbone`."""
        with eval_mode(network):
            metrics = self._metrics(network, self.bank_every, health=True)
            if final and self.labels is not None and self.train_labels is not None:
                metrics |= self._linear(network, self.train_labels, self.labels)
        return metrics

    def phi_distances(self, method: Method) -> dict[str, float]:
        """Compute the quantities of DAR's theorems: distances of phi, the embeddings that the loss compares."""
        subset = self.held_out.every(spacing(len(self.held_out), HEALTH_LIMIT))
        with eval_mode(method):
            distances = self._distances(self.features(method.embed, subset))
        return {f"phi_{name}": value for name, value in distances.items()}

    @property
    def trains_at_end(self) -> bool:
        """Whether the final evaluation trains a probe, or the network."""
        settings = self.settings
        trains = bool(settings.linear) or bool(settings.finetune)
        return trains and self.labels is not None and self.train_labels is not None

    def raw_pixels(self) -> dict[str, float]:
        """Compute the metrics with labels of the raw pixels: a baseline for any training."""
        side = min(self.image_size, RAW_SIDE)
        return self._metrics(
            # Averaged, since subsampling turns fine patterns into noise.
            lambda images: F.adaptive_avg_pool2d(images, side).flatten(1),
            max(self.bank_every, spacing(len(self.train), RAW_BANK_LIMIT)),
            health=False,
        )

    def features(self, encode: Encoder, images: ImageSet, view: int | None = None) -> Tensor:
        """Compute (N, d) float32 features on the CPU, by all ranks together and equal on all.

        Args:
            view: number of a random view; None is the central square.
        """
        ranks, count = world_size(), len(images)
        share = -(-count // ranks)
        # Equal shares for the gather; the repeated images at the end are cut off below.
        padded = np.resize(np.arange(count), share * ranks)
        mine = padded[rank() * share : (rank() + 1) * share]
        collected = FeatureTable(ranks, share)
        with closing(self._encoded(encode, images, mine, view)) as batches:
            for features in batches:
                self.check()
                collected.add(gather(features, all_ranks()).view(ranks, len(features), -1))
        return collected.table().flatten(0, 1)[:count]

    def _own_features(self, encode: Encoder, images: ImageSet, mine: slice, width: int) -> Tensor:
        """Compute the features of this rank's images only, (n, width) float32 on the CPU."""
        positions = np.arange(len(images))[mine]
        collected = FeatureTable(1, len(positions))
        with closing(self._encoded(encode, images, positions)) as batches:
            for features in batches:
                collected.add(features[None])
        return collected.table(width)[0]

    def _encoded(
        self, encode: Encoder, images: ImageSet, mine: np.ndarray, view: int | None = None
    ) -> Generator[Tensor, None, None]:
        """Yield the features of a batch of images at a time, in the order of `mine`."""
        starts = range(0, len(mine), FEATURE_BATCH)
        batches = (mine[start : start + FEATURE_BATCH] for start in starts)
        requests = ((batch, batch) for batch in batches)
        for positions, canvases, valid_hw in canvases_ahead(images, requests, self.device):
            self.keepalive()
            parameters = central_view(valid_hw, self.settings.crop_pct)
            if view is not None:
                parameters = draw_view(
                    valid_hw,
                    self.augment,
                    derive_seed(self.seed, "evaluate", view),
                    torch.from_numpy(positions),
                    canvases.shape[1],
                )
            # Pixels keep their precision: only the network runs under autocast, as in training.
            rendered = self._render(canvases, valid_hw, parameters)
            with torch.no_grad(), autocast(self.precision, self.device):
                features = encode(rendered).float()
            yield features

    def _render(self, canvases: Tensor, valid_hw: Tensor, view: ViewParameters) -> Tensor:
        canvases = canvases.to(self.device, non_blocking=True)
        return render(canvases, valid_hw, view, self.image_size, self.dtype, self.normalization)

    def _metrics(self, encode: Encoder, bank_every: int, *, health: bool) -> dict[str, float]:
        """Compute the metrics of an encoder, with each so many-th training image in the bank of k-NN."""
        settings = self.settings
        held_out = self._on_device(self.features(encode, self.held_out))
        metrics: dict[str, float] = {}
        if self.labels is not None:
            if settings.knn is not None and self.train_labels is not None:
                bank = self.train.every(bank_every)
                share = -(-len(bank) // world_size())
                mine = slice(rank() * share, (rank() + 1) * share)
                metrics["knn_top1"] = knn_accuracy(
                    self._on_device(self._own_features(encode, bank, mine, held_out.shape[1])),
                    self.train_labels[::bank_every][mine],
                    held_out,
                    self.labels,
                    k=settings.knn.k,
                    temperature=settings.knn.temperature,
                    on_block=self.check,
                    group=all_ranks(),
                )
                metrics |= {
                    "knn_k": float(settings.knn.k),
                    "knn_temperature": settings.knn.temperature,
                    "knn_bank": float(len(bank)),
                }
            if settings.retrieval and len(held_out) > 1:
                recalls = self._retrieval(held_out, self.labels)
                metrics |= {f"recall_at_{k}": value for k, value in recalls.items()}
            if isinstance(settings.clustering, KMeans):
                restarts = settings.clustering.restarts
                metrics |= clustering_metrics(
                    held_out, self.labels, restarts=restarts, on_start=self.check
                )
        if health:
            metrics |= self._health(encode, held_out)
        return metrics

    def _retrieval(self, x: Tensor, y: Tensor) -> dict[int, float]:
        if self.in_gallery is None:
            return recall_at_k(x, y, self.settings.retrieval)
        inside, outside = self.in_gallery, ~self.in_gallery
        gallery = (x[inside.to(x.device)], y[inside])
        queries = x[outside.to(x.device)]
        return recall_at_k(queries, y[outside], self.settings.retrieval, gallery=gallery)

    def _health(self, encode: Encoder, features: Tensor) -> dict[str, float]:
        """Compute the metrics that need no labels: is the representation spread, or collapsing?"""
        every = spacing(len(self.held_out), HEALTH_LIMIT)
        subset = self.held_out.every(every)
        first, second = (self.features(encode, subset, view) for view in range(2))
        metrics = {"alignment": alignment(first, second), "mean_norm": mean_norm(features)}
        features = features[::every]
        if len(features) > 1:
            metrics |= {
                "effective_rank": effective_rank(features),
                "dimension_std": dimension_std(features),
                "uniformity": uniformity(features),
            }
        return metrics | self._distances(features)

    def _distances(self, features: Tensor) -> dict[str, float]:
        """Statistics of the distances of at most `HEALTH_LIMIT` held-out images, evenly spaced."""
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
        """Train and test a linear probe on all training images."""
        settings = self.settings.linear
        if not isinstance(settings, LinearProbe):
            return {}
        result = linear_probe(
            self._on_device(self.features(encode, self.train)),
            train_y,
            self.features(encode, self.held_out),
            y,
            learning_rates=settings.learning_rates,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=self.seed,
            device=self.device,
            on_epoch=self.check,
        )
        return {
            "linear_top1": result.top1,
            "linear_top5": result.top5,
            "linear_lr": result.learning_rate,
            **{f"linear_top1_lr_{rate.learning_rate:g}": rate.top1 for rate in result.rates},
        }

    def _fine_tune(self, backbone: nn.Module, train_y: Tensor, y: Tensor) -> dict[str, float]:
        """Fine-tune and test a copy of the network on all training images."""
        settings = self.settings.finetune
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
            seed=self.seed,
            precision=autocast_dtype(self.precision),
            group=all_ranks(),
        )
        return {"finetune_top1": result.top1, "finetune_top5": result.top5}

    def _reader(self, images: ImageSet) -> Reader:
        """A function that reads images: random crops and flips for training, central views for testing."""
        augment = self.augment.model_copy(
            update={
                "jitter_probability": 0.0,
                "grayscale": 0.0,
                "blur": 0.0,
                "solarize": 0.0,
                "channel_drop": 0.0,
            }
        )

        def view_of(valid_hw: Tensor, step: int | None) -> ViewParameters:
            if step is None:
                return central_view(valid_hw, self.settings.crop_pct)
            positions = rank() * len(valid_hw) + torch.arange(len(valid_hw))
            key = derive_seed(self.seed, "fine-tune views", step)
            return draw_view(valid_hw, augment, key, positions)

        def read(requests: Iterable[Request]) -> Generator[Tensor, None, None]:
            shares = (
                (rank_share(positions, all_ranks()).numpy(), step) for positions, step in requests
            )
            with closing(canvases_ahead(images, shares, self.device)) as batches:
                for step, canvases, valid_hw in batches:
                    self.check()
                    yield self._render(canvases, valid_hw, view_of(valid_hw, step))

        return read

    def _on_device(self, features: Tensor) -> Tensor:
        """The features on the GPU, if they take at most half of its free memory."""
        if self.device.type != "cuda":
            return features
        torch.cuda.empty_cache()  # what training holds in reserve counts as used
        free, _ = torch.cuda.mem_get_info(self.device)
        return features.to(self.device) if features.nbytes < free / 2 else features


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[nn.Module]:
    """Context with a network in eval mode; the mode of each module is restored afterwards."""
    modes = {module: module.training for module in network.modules()}
    try:
        yield network.eval()
    finally:
        for module, training in modes.items():
            module.training = training


def _gallery(name: str, held_out: ImageSet) -> Tensor:
    """Whether each held-out image is in the gallery; the others are queries.

    Raises:
        ValueError: all are, or none is.
    """
    inside = held_out.in_folder(name)
    if inside.all() or not inside.any():
        raise ValueError(
            f"evaluate.gallery: {'all' if inside.all() else 'none'} of the {len(held_out)} held-out "
            f"images lie in a folder {name!r} inside their class folder, as in CLASS/{name}/FILE; "
            "queries lie beside it"
        )
    return torch.from_numpy(inside)
