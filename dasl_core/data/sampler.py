"""The order of an epoch whose batches hold a few images of each of many classes ("m per class")."""

import torch
from torch import Tensor


def class_balanced_order(
    labels: Tensor, per_class: int, batch_size: int, generator: torch.Generator
) -> Tensor:
    """Draw the positions of an epoch's images, batch after batch.

    Each batch holds ``batch_size / per_class`` different classes, drawn at random, with `per_class`
    images each, shuffled. Classes appear in proportion to their numbers of images, so that over epochs
    all images are used equally often. A class so large that it would appear twice in a batch is in every
    batch once, and the other classes fill the rest. An image appears twice in a batch only if its class
    has fewer than `per_class` images.

    If there are fewer classes than that, every batch holds all of them, with nearly equal numbers of
    images, at least `per_class`.

    Args:
        labels: (N,) int64, the class of each image; any numbers.
        per_class: images of a class in a batch; divides `batch_size`.
        batch_size: at most N.

    Returns:
        (N // batch_size * batch_size,) int64, from 0 to N - 1.

    Raises:
        ValueError: `batch_size` is not from 1 to N, or `per_class` does not divide it.
    """
    if per_class < 1:
        raise ValueError(f"per_class must be at least 1; given {per_class}")
    if not 1 <= batch_size <= len(labels):
        raise ValueError(
            f"batch_size must be from 1 to {len(labels)}, the number of images; given {batch_size}"
        )
    if batch_size % per_class:
        raise ValueError(
            f"batch_size must be a multiple of per_class, which is {per_class}; given {batch_size}"
        )
    steps, groups = len(labels) // batch_size, batch_size // per_class
    _, numbers, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) < groups:
        classes = torch.rand(steps, len(counts), generator=generator).argsort(dim=1)
        slots = classes[:, torch.arange(batch_size) % len(counts)].flatten()
    else:
        classes = _draw_classes(counts, groups, steps, generator)
        slots = classes.repeat_interleave(per_class, dim=1).flatten()
    order = _assign_images(slots, numbers, counts, generator).view(steps, batch_size)
    # Shuffled, so that a micro-batch, on which BatchNorm may compute statistics, has many classes.
    shuffled = torch.rand(steps, batch_size, generator=generator).argsort(dim=1)
    return order.gather(1, shuffled).flatten()


def _draw_classes(counts: Tensor, groups: int, steps: int, generator: torch.Generator) -> Tensor:
    """Draw (steps, groups) classes, different ones in each row.

    A class with n more appearances to come is drawn with a probability proportional to n (Efraimidis
    and Spirakis, "Weighted random sampling with a reservoir", 2006); if n equals the number of remaining
    batches, it is always drawn. So each class gets all of its appearances.
    """
    remaining = _appearances(counts, groups * steps, steps, generator)
    rows = []
    for batches_left in range(steps, 0, -1):
        keys = (
            torch.rand(len(remaining), generator=generator, dtype=torch.float64).log() / remaining
        )
        keys = keys.masked_fill(remaining == batches_left, float("inf"))
        classes = keys.topk(groups).indices
        remaining[classes] -= 1
        rows.append(classes)
    return torch.stack(rows)


def _appearances(counts: Tensor, total: int, most: int, generator: torch.Generator) -> Tensor:
    """Draw how often each class appears: at most `most` times, and `total` times in all.

    In proportion to `counts`, rounded up or down so that the mean over epochs is the exact
    proportion: systematic sampling, in whole numbers.
    """
    capped = torch.zeros(len(counts), dtype=torch.bool)
    while True:
        rest, images = total - most * int(capped.sum()), int(counts[~capped].sum())
        beyond = ~capped & (counts * rest > most * images)
        if not beyond.any():
            break
        capped |= beyond
    offset = int(torch.randint(images, (), generator=generator))
    edges = (counts.masked_fill(capped, 0).cumsum(0) * rest + offset) // images
    appearances = edges.diff(prepend=edges.new_zeros(1))
    return appearances.masked_fill(capped, most)


def _assign_images(
    slots: Tensor, numbers: Tensor, counts: Tensor, generator: torch.Generator
) -> Tensor:
    """Assign an image (S,) to each slot's class (S,).

    The images of a class are taken in a random order, cyclically: consecutive ones differ.
    """
    shuffled = torch.randperm(len(numbers), generator=generator)
    by_class = shuffled[numbers[shuffled].argsort(stable=True)]
    first = counts.cumsum(0) - counts  # of each class in `by_class`
    used = torch.bincount(slots, minlength=len(counts))
    in_order = slots.argsort(stable=True)
    of = slots[in_order]
    turn = torch.arange(len(slots)) - (used.cumsum(0) - used)[of]
    images = torch.empty_like(slots)
    images[in_order] = by_class[first[of] + turn % counts[of]]
    return images
