"""Images of evaluations are read ahead, and features collected, without a change of any bit."""

from contextlib import closing
from threading import Semaphore
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dasl_core.data.image_set import ImageSet
from dasl_core.train.features import FeatureTable, canvases_ahead

CPU = torch.device("cpu")


class Canvases:
    """Canvases that name their image."""

    def __init__(self) -> None:
        self.read_batches: list[list[int]] = []
        self.is_read = Semaphore(0)

    def read(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        self.read_batches.append(indices.tolist())
        self.is_read.release()
        return torch.from_numpy(indices), torch.from_numpy(-indices)


def test_next_batch_is_read_while_the_caller_works() -> None:
    canvases: Any = Canvases()
    images = ImageSet(canvases, np.arange(10, 20))
    requests = zip(map(np.array, ([3, 1], [4, 1], [5, 9], [2])), "abcd", strict=True)
    with closing(canvases_ahead(images, requests, CPU)) as batches:
        name, first, sizes = next(batches)
        assert (name, first.tolist(), sizes.tolist()) == ("a", [13, 11], [-13, -11])
        for _ in range(2):
            assert canvases.is_read.acquire(timeout=60)
        assert canvases.read_batches == [[13, 11], [14, 11]], "the next one, and no other"
        rest = [(name, canvas.tolist()) for name, canvas, _ in batches]
    assert rest == [("b", [14, 11]), ("c", [15, 19]), ("d", [12])]


def test_reading_stops_with_its_caller() -> None:
    canvases: Any = Canvases()
    images = ImageSet(canvases, np.arange(100))
    requests = ((np.array([number]), number) for number in range(100))
    with closing(canvases_ahead(images, requests, CPU)) as batches:
        next(batches)
    assert len(canvases.read_batches) <= 2


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 30])
def test_features_do_not_depend_on_how_they_are_copied(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr("dasl_core.train.features.CHUNK_BYTES", chunk_bytes)
    features = torch.randn(2, 23, 3, generator=torch.Generator().manual_seed(0))
    collected = FeatureTable(2, 23)
    for batch in features.split(4, dim=1):
        collected.add(batch)
    assert torch.equal(collected.table(), features)


def test_no_rows_have_a_width() -> None:
    assert FeatureTable(1, 0).table(5).shape == (1, 0, 5)
