"""Features of a run's images for evaluation."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dasl_core.data.bounded_map import bounded_map
from dasl_core.data.image_set import ImageSet
from dasl_core.data.views import ViewParameters, central_view, draw_view, render
from dasl_core.distributed import all_ranks, gather, rank, rank_share, world_size
from dasl_core.evaluate.finetune import Reader, Request
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedJobSpec, ViewAugment
from dasl_core.tensors import pinned
from dasl_core.train.precision import autocast, weight_dtype

FEATURE_BATCH = 256
# Number of batches in memory, including the one in use.
BATCHES = 2
# Bytes of features collected on the device before a copy, which waits for the device.
CHUNK_BYTES = 64 << 20

T = TypeVar("T")

Encoder = Callable[[Tensor], Tensor]


class ImageEncoder:
    """Computes features of images. All ranks must make the same calls, except to `local_features`."""

    def __init__(
        self,
        spec: ResolvedJobSpec,
        device: torch.device,
        *,
        keepalive: Callable[[], object] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the encoder of the runs of a spec. No image is read yet.

        Args:
            keepalive: called repeatedly during long computations that differ between ranks.
            check: called repeatedly during all others, by all ranks together; may raise to end them.
        """
        self.augment = spec.augment.for_view(0)  # of the random views
        self.crops = self.augment.model_copy(
            update={
                "jitter_probability": 0.0,
                "grayscale": 0.0,
                "blur": 0.0,
                "solarize": 0.0,
                "channel_drop": 0.0,
            }
        )
        self.crop_pct, self.seed = spec.evaluate.crop_pct, spec.train.seed
        self.precision, self.dtype = spec.train.precision, weight_dtype(spec.train.precision)
        self.device, self.keepalive, self.check = device, keepalive, check
        self.image_size = spec.backbone.image_size
        self.normalization = spec.backbone.normalization

    def features(
        self,
        encode: Encoder,
        images: ImageSet,
        view: int | None = None,
        augment: ViewAugment | None = None,
    ) -> Tensor:
        """Compute (N, d) float32 features on the CPU, on all ranks together.

        Args:
            view: number of a random view; None: the central square.
            augment: of the random view; None: as in training.
        """
        ranks, count = world_size(), len(images)
        share = -(-count // ranks)
        # Equal shares for the gather; repeated images are removed below.
        padded = np.resize(np.arange(count), share * ranks)
        mine = padded[rank() * share : (rank() + 1) * share]
        collected = FeatureTable(ranks, share)
        with closing(self.batches(encode, images, mine, view, augment)) as batches:
            for features in batches:
                self.check()
                collected.add(gather(features, all_ranks()).view(ranks, len(features), -1))
        return collected.table().flatten(0, 1)[:count]

    def local_features(self, encode: Encoder, images: ImageSet, mine: slice, width: int) -> Tensor:
        """Compute the features of this rank's images, (n, width) float32 on the CPU."""
        positions = np.arange(len(images))[mine]
        collected = FeatureTable(1, len(positions))
        with closing(self.batches(encode, images, positions)) as batches:
            for features in batches:
                collected.add(features[None])
        return collected.table(width)[0]

    def batches(
        self,
        encode: Encoder,
        images: ImageSet,
        mine: np.ndarray,
        view: int | None = None,
        augment: ViewAugment | None = None,
    ) -> Generator[Tensor, None, None]:
        """Yield float32 features on the device, batch by batch, in the order of `mine`.

        Args:
            mine: positions in `images`.
            view, augment: as for `features`.
        """
        starts = range(0, len(mine), FEATURE_BATCH)
        batches = (mine[start : start + FEATURE_BATCH] for start in starts)
        requests = ((batch, batch) for batch in batches)
        for positions, canvases, valid_hw in canvases_ahead(images, requests, self.device):
            self.keepalive()
            parameters = central_view(valid_hw, self.crop_pct)
            if view is not None:
                parameters = draw_view(
                    valid_hw,
                    augment or self.augment,
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

    def reader(self, images: ImageSet) -> Reader:
        """Return a function that reads images as random crops and flips for training, or central views for testing."""

        def make_view(valid_hw: Tensor, step: int | None) -> ViewParameters:
            if step is None:
                return central_view(valid_hw, self.crop_pct)
            positions = rank() * len(valid_hw) + torch.arange(len(valid_hw))
            key = derive_seed(self.seed, "fine-tune views", step)
            return draw_view(valid_hw, self.crops, key, positions)

        def read(requests: Iterable[Request]) -> Generator[Tensor, None, None]:
            shares = (
                (rank_share(positions, all_ranks()).numpy(), step) for positions, step in requests
            )
            with closing(canvases_ahead(images, shares, self.device)) as batches:
                for step, canvases, valid_hw in batches:
                    self.check()
                    yield self._render(canvases, valid_hw, make_view(valid_hw, step))

        return read

    def on_device(self, features: Tensor) -> Tensor:
        """Return features on the GPU, if they take at most half of its free memory."""
        if self.device.type != "cuda":
            return features
        torch.cuda.empty_cache()  # cached memory of the training counts as used
        free, _ = torch.cuda.mem_get_info(self.device)
        return features.to(self.device) if features.nbytes < free / 2 else features


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[nn.Module]:
    """Context manager that sets eval mode and restores the mode of each module."""
    modes = {module: module.training for module in network.modules()}
    try:
        yield network.eval()
    finally:
        for module, training in modes.items():
            module.training = training


def canvases_ahead(
    images: ImageSet, batches: Iterable[tuple[np.ndarray, T]], device: torch.device
) -> Generator[tuple[T, Tensor, Tensor], None, None]:
    """Yield batches of images, prefetching the next one.

    Args:
        batches: positions in `images`, and a value to yield with them.
        device: to which the caller copies the canvases.

    Yields:
        The value, canvases, and valid heights and widths of each batch.
    """

    def read(batch: tuple[np.ndarray, T]) -> tuple[T, Tensor, Tensor]:
        positions, about = batch
        canvases, valid_hw = images.canvases.read(images.indices[positions])
        return about, pinned(canvases, device), valid_hw

    with ThreadPoolExecutor(1, thread_name_prefix="evaluate-read") as reader:
        yield from bounded_map(reader, read, batches, BATCHES)


class FeatureTable:
    """Features (ranks, rows, d) float32 on the CPU, added in batches along the rows.

    They may not all fit into a GPU's memory during training.
    """

    def __init__(self, ranks: int, rows: int) -> None:
        self.ranks, self.rows = ranks, rows
        self._table: Tensor | None = None
        self._filled = 0
        self._waiting: list[Tensor] = []

    def add(self, features: Tensor) -> None:
        """Add the next rows (ranks, n, d), which stay on their device for a while."""
        self._waiting.append(features)
        if sum(features.nbytes for features in self._waiting) >= CHUNK_BYTES:
            self._copy()

    def table(self, width: int | None = None) -> Tensor:
        """Return all features; without rows, of width d."""
        if self._waiting:
            self._copy()
        if self._table is None:
            assert width is not None, "a set of images to evaluate is never empty"
            self._table = torch.empty(self.ranks, self.rows, width)
        assert self._filled == self.rows
        return self._table

    def _copy(self) -> None:
        chunk = torch.cat(self._waiting, dim=1)
        self._waiting.clear()
        if self._table is None:
            self._table = torch.empty(self.ranks, self.rows, chunk.shape[2])
        self._table[:, self._filled : self._filled + chunk.shape[1]] = chunk.cpu()
        self._filled += chunk.shape[1]
