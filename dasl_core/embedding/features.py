"""Features of all readable images of a data set, batch by batch."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.embedding.backbone import TrainedBackbone
from dasl_core.train.data import check_readable, open_canvases
from dasl_core.train.features import FEATURE_BATCH
from dasl_core.vocabulary import EmbeddingType, FeatureKind

OnProgress = Callable[[int], None]
"""Called with the number of images done so far."""


@dataclass(frozen=True)
class FeatureBatch:
    """Features of some images.

    Attributes:
        keys: keys of the images in their source.
        labels: class names; None without labels.
        features: (n, d), or (n, patches, d).
    """

    keys: list[str]
    labels: list[str] | None
    features: np.ndarray


class ImagesWithFeatures:
    """The images of a data set, decoded as in the training of a backbone, and their features.

    Attributes:
        unreadable: reasons of excluded images, by position; more are added when they are read.
        shape: shape of the features of an image, known after `batches` has yielded some.
    """

    def __init__(
        self,
        backbone: TrainedBackbone,
        index: DatasetIndex,
        *,
        cache: Path | None,
        threads: int,
        on_decoded: OnProgress = lambda images: None,
    ) -> None:
        """Open the images, and decode missing ones into the cache.

        Args:
            cache: folder of the data set's decoded images, shared with trainings; None: decode each image when it is
                read.
                threads: number of threads for decoding images that are not cached.
            on_decoded: called while the cache is built.
        """
        self.backbone, self.index = backbone, index
        self._canvases = open_canvases(backbone.spec, index, cache, threads, on_decoded)
        self.unreadable = self._canvases.unreadable
        self.shape: tuple[int, ...] = ()
        self._readable = np.setdiff1d(np.arange(len(index)), list(self.unreadable))

    def check(self, name: str) -> None:
        """Check that most images can be read; see `check_readable`."""
        check_readable(name, self.index, self.unreadable)

    def batches(
        self,
        kind: FeatureKind = "pooled",
        *,
        normalize: bool = False,
        dtype: EmbeddingType = "float32",
        on_done: OnProgress = lambda images: None,
    ) -> Iterator[FeatureBatch]:
        """Yield the features of all readable images, in the order of the index.

        Args:
            normalize: scale each vector to length 1.
            dtype: type of the features; float16 is rounded from the usual computation.
            on_done: called with the number of embedded or excluded images.

        Raises:
            SpecError: the backbone lacks these features.
        """
        images = ImageSet(self._canvases, self._readable)
        encode, encoder = self.backbone.encode(kind), self.backbone.encoder()
        positions, left_out = np.arange(len(images)), len(self.index) - len(images)
        with closing(encoder.batches(encode, images, positions)) as computed:
            for number, features in enumerate(computed):
                start = number * FEATURE_BATCH
                positions = self._readable[start : start + FEATURE_BATCH]
                batch = self._batch(positions, features, normalize, dtype)
                self.shape = batch.features.shape[1:]
                if batch.keys:
                    yield batch
                on_done(left_out + start + len(positions))

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return facts about the embedding, JSON-ready, after all `batches` in a number of seconds."""
        embedded = len(self.index) - len(self.unreadable)
        return {
            "images": embedded,
            "shape": list(self.shape),
            "unreadable": len(self.unreadable),
            "seconds": round(seconds, 3),
            "images_per_second": round(embedded / max(seconds, 1e-9), 1),
            "device": self.backbone.device.type,
        }

    def _batch(
        self, positions: np.ndarray, features: Tensor, normalize: bool, dtype: EmbeddingType
    ) -> FeatureBatch:
        # Without a cache, damaged images are only found by reading them.
        read = [at for at, image in enumerate(positions.tolist()) if image not in self.unreadable]
        if normalize:
            features = F.normalize(features, dim=-1)
        rows = features.cpu().numpy().astype(dtype, copy=False)
        if len(read) < len(positions):
            positions, rows = positions[read], rows[read]
        numbers = self.index.labels
        names = None
        if numbers is not None:
            names = [self.index.class_names[number] for number in numbers[positions].tolist()]
        return FeatureBatch([self.index.paths[at] for at in positions.tolist()], names, rows)

    def close(self) -> None:
        """Stop the decoding threads, and release the cache."""
        self._canvases.close()
