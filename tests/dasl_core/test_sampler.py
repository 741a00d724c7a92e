"""Class-balanced batches: m images of each of several classes, every image about equally often."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import EpochLoader
from dasl_core.data.sampler import class_balanced_order
from dasl_core.seeds import stream
from tests.support.gloo_pool import GlooPool


def labels_of(counts: list[int], seed: int = 0) -> Tensor:
    """Labels with the given number of images of each class, in random order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def order_of(labels: Tensor, per_class: int, batch_size: int, epoch: int = 0) -> Tensor:
    """Draw positions (steps, batch_size)."""
    generator = stream(0, "order", epoch)
    return class_balanced_order(labels, per_class, batch_size, generator).view(-1, batch_size)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 30), min_size=4, max_size=12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_batch_has_per_class_images_of_different_classes(
    counts: list[int], per_class: int, groups: int, epoch: int
) -> None:
    labels, batch_size = labels_of(counts), per_class * groups
    if batch_size > len(labels):
        return
    order = order_of(labels, per_class, batch_size, epoch)
    assert order.shape == (len(labels) // batch_size, batch_size)
    for batch in order:
        classes, held = labels[batch].unique(return_counts=True)
        assert held.tolist() == [per_class] * groups
        for number in classes.tolist():
            own = batch[labels[batch] == number].tolist()
            assert len(set(own)) == min(per_class, counts[number])


def test_images_of_equal_classes_appear_once() -> None:
    labels = labels_of([8] * 15)
    order = order_of(labels, 4, 24)
    assert order.flatten().sort().values.equal(torch.arange(120))


def test_images_of_unequal_classes_appear_equally_often_over_epochs() -> None:
    counts = [1, 2, 3, 5, 9, 13, 17, 20, 25, 25]
    labels, epochs = labels_of(counts), 400
    used = torch.zeros(len(labels))
    for epoch in range(epochs):
        order = order_of(labels, 4, 12, epoch).flatten()
        used += torch.bincount(order, minlength=len(labels))
        # Within an epoch a class is at most one group off its share.
        of_class = torch.bincount(labels[order], minlength=10)
        shares = torch.tensor(counts) * len(order) / len(labels)
        assert ((of_class - shares).abs() < 4 + 1e-6).all()
    mean = used / epochs
    expected = len(order) / len(labels)
    for number in range(10):  # by class: an image of the smallest comes four times, or not at all
        assert mean[labels == number].mean().item() == pytest.approx(expected, abs=0.2)
    assert mean.std() < 0.1


def test_largest_class_is_in_every_batch_once() -> None:
    labels = labels_of([100, 10, 10])
    order = order_of(labels, 2, 4)
    for batch in order:
        held = torch.bincount(labels[batch], minlength=3)
        assert held[0] == 2
        assert held[1:].sum() == 2
    used = torch.bincount(order.flatten(), minlength=120)
    assert used[labels == 0].max() - used[labels == 0].min() <= 1
    assert (used[labels > 0] - 3).abs().max() <= 1  # 30 batches of two, on 20 images


@pytest.mark.parametrize("counts", [[9, 9, 6], [2, 1], [40]])
def test_few_classes_are_all_in_every_batch(counts: list[int]) -> None:
    labels = labels_of([count * 8 for count in counts])
    for batch in order_of(labels, 2, 8):
        held = torch.bincount(labels[batch], minlength=len(counts))
        assert held.max() - held.min() <= 1
        assert held.min() >= 2
        assert len(batch.unique()) == 8


def test_combinations_of_classes_vary() -> None:
    labels = labels_of([20] * 10)
    met = torch.zeros(10, 10)
    for epoch in range(20):
        for batch in order_of(labels, 4, 8, epoch):
            first, second = labels[batch].unique().tolist()
            met[first, second] += 1
    pairs = met[torch.triu(torch.ones(10, 10), 1) == 1]
    assert pairs.min() > 0.3 * pairs.mean()
    assert pairs.max() < 2.5 * pairs.mean()


def test_class_balanced_batch_is_shuffled() -> None:
    labels = labels_of([16] * 8)
    halves = [labels[batch].view(2, -1).sort(dim=1).values for batch in order_of(labels, 4, 16)]
    assert any(len(half[0].unique()) > 2 for half in halves)


def test_class_balanced_order_depends_only_on_generator() -> None:
    labels = labels_of([5, 8, 13, 21])
    assert order_of(labels, 2, 8, 3).equal(order_of(labels, 2, 8, 3))
    assert not order_of(labels, 2, 8, 3).equal(order_of(labels, 2, 8, 4))
    # The numbers of the classes do not matter.
    assert order_of(labels * 7 - 5, 2, 8, 3).equal(order_of(labels, 2, 8, 3))


def test_indivisible_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of per_class, which is 3; given 8"):
        order_of(labels_of([5, 5]), 3, 8)
    for per_class in (0, -2):
        with pytest.raises(ValueError, match=f"per_class must be at least 1; given {per_class}"):
            order_of(labels_of([5, 5]), per_class, 8)
    for batch_size in (0, 12):
        with pytest.raises(ValueError, match="batch_size must be from 1 to 10"):
            order_of(labels_of([5, 5]), 2, batch_size)


# --- in the loader


def samples_of(index: DatasetIndex, cache: Path, first_step: int = 0) -> list[list[int]]:
    canvases = Canvases(index, 16, 3, cache=cache, threads=1)
    samples = np.arange(1, len(index))  # positions in the index are not positions in the samples
    labels = torch.tensor(index.labels)[1:]
    loader = EpochLoader(canvases, samples, 8, 5, labels=labels, samples_per_class=4)
    try:
        return [batch.indices.tolist() for batch in loader.epoch(2, first_step)]
    finally:
        canvases.close()


def test_loader_batches_are_class_balanced(pictures: DatasetIndex, cache: Path) -> None:
    labels = torch.tensor(pictures.labels)
    batches = samples_of(pictures, cache)
    assert len(batches) == 3
    for batch in batches:
        assert sorted(torch.bincount(labels[batch], minlength=3).tolist()) == [0, 4, 4]
    assert 0 not in chain(*batches)
    assert samples_of(pictures, cache, 2) == batches[2:]


def test_batches_do_not_depend_on_the_number_of_ranks(
    pool: GlooPool, pictures: DatasetIndex, cache: Path
) -> None:
    alone = samples_of(pictures, cache)
    assert all(batches == alone for batches in pool.call(4, samples_of, pictures, cache))
