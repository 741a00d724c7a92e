"""What an evaluation reads, and at which size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from training_world import ingest, picture_folder, resolved

from dasl_core.data.loader import Canvases
from dasl_core.train.evaluation import RAW_SIDE, Evaluator, ImageSet


@pytest.mark.parametrize(("image_size", "side"), [(16, 16), (96, RAW_SIDE)])
def test_raw_pixels_are_compared_at_a_small_side(
    tmp_path: Path, image_size: int, side: int
) -> None:
    index = ingest(picture_folder(tmp_path / "pictures", size=(100, 120)))
    spec = resolved(index, backbone={"name": "test_resnet", "image_size": image_size})
    canvases = Canvases(index, image_size, 3, cache=tmp_path / "cache", threads=1)
    images = ImageSet(canvases, np.arange(len(index)))
    widths = []

    class Recording(Evaluator):
        def features(self, *arguments: object, **options: object) -> Tensor:
            features = super().features(*arguments, **options)  # type: ignore[arg-type]
            widths.append(features.shape[1])
            return features

    evaluator = Recording(spec, images, images, torch.device("cpu"), torch.float32)
    metrics = evaluator.raw_pixels()
    canvases.close()
    assert set(widths) == {3 * side * side}
    assert metrics["recall_at_1"] > 0.9  # one colour a class
    assert evaluator.image_size == image_size
