"""`pretrain` on a map-style data set, and with an augmentation of the user."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dasl_core.data import MappedIndex, decode_image
from dasl_core.data.index import DatasetIndex
from dasl_core.vocabulary import CERTIFICATE
from tests.support.training_world import Recorder, assert_same, recorded, resolved, run

Items = list[Any]


def items_of(index: DatasetIndex) -> Items:
    """The images of a folder with their classes, in memory: tensors, arrays and PIL images."""
    assert index.labels is not None
    items: Items = []
    for position, label in enumerate(index.labels.tolist()):
        pixels = decode_image(index.root / index.paths[position])
        image: Any = (torch.from_numpy(pixels).permute(2, 0, 1), pixels, Image.fromarray(pixels))
        items.append((image[position % 3], label))
    return items


def two_views(images: Tensor, valid_hw: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The upper left 16 pixels, a random number of pixels to the right, with noise."""
    views = []
    for _ in range(2):
        right = int(torch.randint(0, 4, (), generator=generator))
        pixels = images[:, :, :16, right : right + 16].float() / 255
        views.append(pixels + 0.1 * torch.randn(pixels.shape, generator=generator))
    return views


@pytest.mark.usefixtures("without_plots")
def test_data_set_in_memory_trains_like_its_folder(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    items = items_of(pictures)
    index = MappedIndex.from_dataset(items, pictures.class_names)
    measured = {"quantiles", "mean", "std"}  # which a data set in memory has not
    assert index.facts() == pictures.facts().model_copy(update=dict.fromkeys(measured))
    # Held-out images are chosen by name.
    spec = resolved(pictures, dar={"labels": "class"}, evaluate={"holdout": None})
    curves = []
    for name, data in (("folder", pictures), ("memory", index)):
        reporter = recorded(spec, data, cache / name, tmp_path / name)
        curves.append(reporter.curve())
    assert curves[0] == curves[1]
    assert not list((cache / "memory").glob("*"))


@pytest.mark.usefixtures("without_plots")
def test_own_augmentation_resumes_exactly(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    from dasl_core.train.certificate import read_certificate
    from dasl_core.train.serialization import load_state

    index = MappedIndex.from_dataset(items_of(pictures))
    spec = resolved(index, train={"epochs": 2})
    whole = recorded(spec, index, cache, tmp_path / "whole", augmentation=two_views)
    again = recorded(
        spec, index, cache, tmp_path / "again", whole.checkpoints[0][1], augmentation=two_views
    )
    assert_same(load_state(whole.last_checkpoint), load_state(again.last_checkpoint), "state")
    assert read_certificate(whole.last_checkpoint / CERTIFICATE).own_views
    usual = recorded(spec, index, cache, tmp_path / "usual")
    assert usual.curve() != whole.curve()


@pytest.mark.parametrize(
    "views", [lambda x, *_: [x.float()], lambda x, *_: [x.float()[:, :1], x.float()]]
)
def test_wrong_views_are_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, views: Any
) -> None:
    with pytest.raises(ValueError, match=r"must return 2 views of shape \(8, 3, H, W\)"):
        run(resolved(pictures), pictures, cache, Recorder(tmp_path), augmentation=views)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "dataset must contain at least one image"),
        ([torch.zeros(3, 4, 4)], "item 0 .*; given torch.float32 of shape"),
        (["a.png"], "item 0 .*; given str"),
        (
            [(torch.zeros(3, 4, 4, dtype=torch.uint8), 0), torch.zeros(1, 4, 4, dtype=torch.uint8)],
            "a class for 1 of 2 images only",
        ),
        ([(np.zeros((4, 4, 3), np.uint8), 2)], "positions in the 2 class_names"),
    ],
)
def test_unusable_data_sets_are_refused(items: Items, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MappedIndex.from_dataset(items, ["a", "b"])


def test_channels_are_converted() -> None:
    gray = torch.arange(16, dtype=torch.uint8).view(1, 4, 4)
    index = MappedIndex.from_dataset([gray])
    assert index.labels is None
    assert np.array_equal(index.decode(0, 1), gray.permute(1, 2, 0).numpy())
    assert np.array_equal(index.decode(0, 3), gray.permute(1, 2, 0).expand(4, 4, 3).numpy())
